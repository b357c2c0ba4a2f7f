// The processor, and which of its cores the ranks of a machine may use.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>

#include "base/cores.h"
#include "base/resources.h"
#include "cli/doctor/finding.h"
#include "train/binding.h"
#include "train/threads.h"

namespace lockstep::cli::checkup {
namespace {

Finding judge(const std::vector<train::RankCores>& all, const comm::Topology& topology, int node,
              int threads) {
  const char* const subject = "binding";
  if (const auto crowd = train::crowding(all, topology, node, threads))
    return {subject, crowd->bound_away ? Verdict::problem : Verdict::note, crowd->text, crowd->remedy};
  const std::string& host = topology.host_names[static_cast<std::size_t>(node)];
  const std::string each = train::threads_each(threads);
  std::set<CoreSet> sets;
  std::map<CoreSet, CoreSet> of_physical;  // of ranks with a hardware thread each
  std::vector<std::string> shown;
  int ranks = 0;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].node != node) continue;
    ++ranks;
    const CoreSet& mine = all[rank].hardware_threads;
    sets.insert(mine);
    if (shown.size() < 8) shown.push_back(fmt::format("rank {}: {}", rank, to_text(mine)));
    if (mine.size() != 1) continue;
    CoreSet& together = of_physical[all[rank].cores];
    together.insert(*mine.begin());
    if (together.size() > 1)
      return {subject, Verdict::note,
              fmt::format("{}: ranks share a core, as its hardware threads {}", host, to_text(together)),
              "bind ranks to whole cores (srun --hint=nomultithread), and measure both ways"};
  }
  if (sets.size() == 1 && ranks > 1)
    return {subject, Verdict::ok,
            fmt::format("{}: {} ranks with {}, free to move over cores {}", host, ranks, each,
                        to_text(*sets.begin())),
            ""};
  return {subject, Verdict::ok,
          fmt::format("{}: {}{} ({})", host, fmt::join(shown, ", "),
                      static_cast<std::size_t>(ranks) > shown.size() ? ", ..." : "", each),
          ""};
}

}  // namespace

Finding processor(const Scene& scene) {
  const char* const subject = "processor";
  const int cores = available_cores();
  std::string text = fmt::format("{}, {} of {} cores for this process, ranks on this machine: {}",
                                 instruction_set(), cores, machine_cores(), scene.ranks_here);
  const auto quota = cgroup_cores();
  if (quota && std::ceil(*quota) < cores) {
    return {subject, Verdict::note, fmt::format("{}; the container may use {:g} cores' time", text, *quota),
            "count ranks and threads by that (docker: --cpus), not by what is shown as cores"};
  }
  if (cores < machine_cores() && !scene.launched) {
    return {subject, Verdict::note, text,
            "the rest of the machine is bound away (taskset, cgroup or the launcher)"};
  }
  return {subject, Verdict::ok, text, ""};
}

Findings binding(const comm::HostGroup& world, const std::vector<train::RankCores>& cores,
                 const Needs& needs) {
  const comm::Topology& topology = world.topology();
  Findings findings;
  for (int node = 0; node < topology.nodes(); ++node) {
    const Finding found = judge(cores, topology, node, needs.threads);
    if (node == 0 || found.verdict != Verdict::ok) findings.push_back(found);
  }
  if (!needs.bind)
    findings.push_back(
        {"binding", Verdict::ok, "training binds no threads (train.bind or LOCKSTEP_BIND = none)", ""});
  for (int node = 0; needs.bind && node < topology.nodes(); ++node) {
    const train::NodeBinding bound = train::binding_of(cores, topology, node, needs.threads);
    if (bound.text.empty() || (node > 0 && bound.bound)) continue;
    findings.push_back({"binding", bound.bound ? Verdict::ok : Verdict::note,
                        fmt::format("when training on the CPU, {}", bound.text),
                        bound.bound ? "" : "lower train.threads, or give each rank cores of its own"});
  }
  const train::ThreadChoice choice = train::choose_threads(cores, topology);
  findings.push_back({"threads", Verdict::ok,
                      fmt::format("{} for a rank; train.threads = 0 would make it {} ({})", needs.threads,
                                  choice.threads, choice.reason),
                      ""});
  return findings;
}

}  // namespace lockstep::cli::checkup
