// The processor, and which of its cores the ranks of a machine may use.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "cli/doctor/cgroup.h"
#include "cli/doctor/finding.h"
#include "lockstep/base/processor.h"

namespace lockstep::cli::checkup {
namespace {

int machine_cores() { return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)); }

/// What the kernel calls "0-3,8": the cores this process may use.
std::set<int> own_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  std::set<int> cores;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &mask)) cores.insert(core);
  }
  return cores;
}

std::string to_text(const std::set<int>& cores) {
  std::string text;
  for (auto first = cores.begin(); first != cores.end();) {
    auto last = first;
    while (std::next(last) != cores.end() && *std::next(last) == *last + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", *first);
    if (last != first) text += fmt::format("-{}", *last);
    first = std::next(last);
  }
  return text;
}

std::set<int> from_text(const std::string& text) {
  std::set<int> cores;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    int first = 0, last = 0;
    const int read = std::sscanf(text.substr(at, comma - at).c_str(), "%d-%d", &first, &last);
    if (read >= 1) {
      for (int core = first; core <= (read == 2 ? last : first); ++core) cores.insert(core);
    }
    at = comma + 1;
  }
  return cores;
}

/// The physical core as the set of its hardware threads; the thread itself where /sys does not say.
std::string siblings_of(int core) {
  std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", core));
  std::string text;
  return std::getline(file, text) ? text : std::to_string(core);
}

struct Rank {
  int number = 0;
  std::string cores;     ///< "0-3,8"
  std::string physical;  ///< of a rank with a single core: the hardware threads of it
};

/// Ranks whose every core lies in `cores`.
std::vector<int> confined_to(const std::set<int>& cores, const std::vector<Rank>& ranks) {
  std::vector<int> found;
  for (const Rank& rank : ranks) {
    if (std::ranges::includes(cores, from_text(rank.cores))) found.push_back(rank.number);
  }
  return found;
}

Finding judge(const std::string& host, const std::vector<Rank>& ranks, int cores_of_machine, int threads) {
  const char* const subject = "binding";
  std::set<std::string> sets;
  for (const Rank& rank : ranks) sets.insert(rank.cores);
  const std::string each = threads == 1 ? "a thread each" : fmt::format("{} threads each", threads);
  for (const std::string& text : sets) {
    const std::set<int> cores = from_text(text);
    const std::vector<int> confined = confined_to(cores, ranks);
    const int available = static_cast<int>(cores.size());
    if (static_cast<int>(confined.size()) * threads <= available) continue;
    if (available >= cores_of_machine) {
      return {subject, Verdict::note,
              fmt::format("{}: {} ranks with {} on {} cores: they take turns", host, confined.size(), each,
                          available),
              "start fewer ranks, or lower train.threads: expect no speed-up"};
    }
    return {subject, Verdict::problem,
            confined.size() == 1
                ? fmt::format("{}: rank {}, with {}, is bound to core{} {}", host, confined[0], each,
                              available == 1 ? "" : "s", text)
                : fmt::format("{}: ranks {} are bound to the same core{} {}, with {}", host,
                              fmt::join(confined, ", "), available == 1 ? "" : "s", text, each),
            "give each rank cores of its own: mpirun --map-by slot:PE=THREADS --bind-to core, or srun "
            "--cpus-per-task=THREADS --cpu-bind=cores"};
  }
  std::map<std::string, int> of_physical;
  for (const Rank& rank : ranks) {
    if (!rank.physical.empty() && ++of_physical[rank.physical] == 2) {
      return {subject, Verdict::note,
              fmt::format("{}: ranks share a core, as its hardware threads {}", host, rank.physical),
              "bind ranks to whole cores (srun --hint=nomultithread), and measure both ways"};
    }
  }
  if (sets.size() == 1 && ranks.size() > 1) {
    return {subject, Verdict::ok,
            fmt::format("{}: {} ranks with {}, free to move over cores {}", host, ranks.size(), each,
                        *sets.begin()),
            ""};
  }
  std::vector<std::string> shown;
  for (const Rank& rank : ranks) {
    if (shown.size() < 8) shown.push_back(fmt::format("rank {}: {}", rank.number, rank.cores));
  }
  return {subject, Verdict::ok,
          fmt::format("{}: {}{} ({})", host, fmt::join(shown, ", "),
                      ranks.size() > shown.size() ? ", ..." : "", each),
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

Findings binding(comm::Communicator& world, const Needs& needs) {
  const std::set<int> mine = own_cores();
  const std::string note = fmt::format("{}\n{}\n{}", to_text(mine),
                                       mine.size() == 1 ? siblings_of(*mine.begin()) : "", machine_cores());
  const std::vector<std::string> notes = world.all_gather_texts(note);
  const comm::Topology& topology = world.topology();
  Findings findings;
  for (int node = 0; node < topology.nodes(); ++node) {
    std::vector<Rank> ranks;
    int cores_of_machine = 1;
    for (std::size_t rank = 0; rank < notes.size(); ++rank) {
      if (topology.node_of_rank[rank] != node) continue;
      const std::size_t first = notes[rank].find('\n'), second = notes[rank].find('\n', first + 1);
      ranks.push_back({static_cast<int>(rank), notes[rank].substr(0, first),
                       notes[rank].substr(first + 1, second - first - 1)});
      cores_of_machine = std::max(cores_of_machine, std::atoi(notes[rank].c_str() + second + 1));
    }
    const Finding found =
        judge(topology.host_names[static_cast<std::size_t>(node)], ranks, cores_of_machine, needs.threads);
    if (node == 0 || found.verdict != Verdict::ok) findings.push_back(found);
  }
  return findings;
}

}  // namespace lockstep::cli::checkup
