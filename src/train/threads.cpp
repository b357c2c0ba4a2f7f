#include "train/threads.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "base/resources.h"
#include "base/text.h"

namespace lockstep::train {
namespace {

/// Ranks of one machine and the cores that they, and nobody else here, may use.
struct Group {
  int ranks = 0;
  CoreSet hardware_threads, cores;
};

/// Ranks are in one group if their cores overlap, or those of ranks between them.
std::vector<Group> groups_of(std::span<const RankCores> ranks, int node) {
  std::vector<Group> groups;
  for (const RankCores& rank : ranks) {
    if (rank.node != node) continue;
    Group joined{1, rank.hardware_threads, rank.cores};
    std::erase_if(groups, [&](const Group& group) {
      if (!overlap(group.cores, rank.cores)) return false;
      joined.ranks += group.ranks;
      joined.hardware_threads.insert(group.hardware_threads.begin(), group.hardware_threads.end());
      joined.cores.insert(group.cores.begin(), group.cores.end());
      return true;
    });
    groups.push_back(std::move(joined));
  }
  return groups;
}

}  // namespace

std::string threads_each(int threads) {
  return threads == 1 ? "a thread each" : fmt::format("{} threads each", threads);
}

std::vector<RankCores> cores_of_ranks(comm::HostGroup& world) {
  const CoreSet& mine = given_cores();
  std::vector<std::string> of_core;
  for (const CoreSet& core : core_by_core(mine)) of_core.push_back(lockstep::to_text(core));
  const std::vector<std::string> texts =
      world.all_gather_texts(fmt::format("{} {} {} {}", machine_cores(), cgroup_cores().value_or(0),
                                         lockstep::to_text(physical_cores(mine)), fmt::join(of_core, " ")));
  std::vector<RankCores> ranks;
  for (const std::string& text : texts) {
    RankCores rank;
    rank.node = world.topology().node_of_rank[ranks.size()];
    std::string cores;
    std::istringstream words(text);
    words >> rank.of_machine >> rank.quota_cores >> cores;
    rank.cores = cores_in(cores);
    for (std::string core; words >> core;) rank.of_core.push_back(cores_in(core));
    rank.hardware_threads = united(rank.of_core);
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

ThreadChoice choose_threads(std::span<const RankCores> ranks, const comm::Topology& topology) {
  ThreadChoice choice{.threads = std::numeric_limits<int>::max(), .reason = {}};
  const auto consider = [&](int node, double cores, int sharing, const std::string& what) {
    const int threads = std::max(1, static_cast<int>(cores) / sharing);
    if (threads >= choice.threads) return;
    choice = {threads, fmt::format("{}: {} on {}", topology.host_names[static_cast<std::size_t>(node)],
                                   pluralized(sharing, "rank"), what)};
  };
  for (int node = 0; node < topology.nodes(); ++node) {
    for (const Group& group : groups_of(ranks, node)) {
      const auto cores = group.cores.size();
      const std::string hyper = group.hardware_threads.size() > cores
                                    ? fmt::format(" ({} hardware threads)", group.hardware_threads.size())
                                    : "";
      consider(node, static_cast<double>(cores), group.ranks, pluralized(cores, "core") + hyper);
    }
    for (const RankCores& rank : ranks) {
      if (rank.node != node) continue;
      consider(node, static_cast<double>(rank.cores.size()), 1,
               pluralized(rank.cores.size(), "core") + " of its own");
      if (rank.quota_cores <= 0) continue;
      consider(
          node, rank.quota_cores, topology.ranks_on_node(node),
          fmt::format("{:g} cores' worth of time, which is what their control group gets", rank.quota_cores));
    }
  }
  if (choice.reason.empty()) choice.threads = 1;
  return choice;
}

std::optional<Crowding> crowding(std::span<const RankCores> ranks, const comm::Topology& topology, int node,
                                 int threads) {
  const std::string& host = topology.host_names[static_cast<std::size_t>(node)];
  for (const RankCores& of : ranks) {
    const CoreSet& cores = of.hardware_threads;
    if (of.node != node || cores.empty()) continue;
    std::vector<std::size_t> confined;  // ranks that may use nothing else
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (ranks[rank].node == node && std::ranges::includes(cores, ranks[rank].hardware_threads))
        confined.push_back(rank);
    }
    const auto available = cores.size();
    if (confined.size() * static_cast<std::size_t>(threads) <= available) continue;
    if (static_cast<int>(available) >= of.of_machine)
      return Crowding{.bound_away = false,
                      .text = fmt::format("{}: {} with {} on {}: they take turns", host,
                                          pluralized(confined.size(), "rank"), threads_each(threads),
                                          pluralized(available, "core")),
                      .remedy = "start fewer ranks, or lower train.threads: expect no speed-up"};
    const std::string bound = fmt::format("core{} {}", available == 1 ? "" : "s", lockstep::to_text(cores));
    return Crowding{
        .bound_away = true,
        .text = confined.size() == 1 ? fmt::format("{}: rank {}, with {}, is bound to {}", host, confined[0],
                                                   threads_each(threads), bound)
                                     : fmt::format("{}: ranks {} are bound to the same {}, with {}", host,
                                                   fmt::join(confined, ", "), bound, threads_each(threads)),
        .remedy =
            "give each rank cores of its own: mpirun --map-by slot:PE=THREADS --bind-to core, or srun "
            "--cpus-per-task=THREADS --cpu-bind=cores"};
  }
  return std::nullopt;
}

}  // namespace lockstep::train
