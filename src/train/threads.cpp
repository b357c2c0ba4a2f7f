#include "train/threads.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <string_view>

#include "base/resources.h"
#include "base/text.h"
#include "comm/mpi_calls.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::train {
namespace {

/// Ranks of one node and their exclusive cores.
struct Group {
  int ranks = 0;
  CoreSet hardware_threads, cores;
};

/// Ranks are in one group if their cores overlap, directly or through other ranks.
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

/// Whether some mask is narrower than `given`.
bool narrows(const std::vector<CoreSet>& masks, const CoreSet& given) {
  return std::ranges::any_of(masks, [&](const CoreSet& mask) { return mask != given; });
}

/// False if the system refuses.
bool bind_team(const std::vector<CoreSet>& masks) {
  if (!threads_bound() && !narrows(masks, process_cores())) return true;
  const int threads = static_cast<int>(masks.size());
  int refused = 0;
#pragma omp parallel num_threads(threads) reduction(+ : refused)
  refused += !bind_thread(masks[static_cast<std::size_t>(omp_get_thread_num())]);
  return refused == 0;
}

}  // namespace

std::string threads_each(int threads) {
  return threads == 1 ? "a thread each" : fmt::format("{} threads each", threads);
}

std::vector<RankCores> cores_of_ranks(comm::HostGroup& world) {
  const CoreSet& mine = process_cores();
  std::vector<std::string> by_core;
  for (const CoreSet& core : core_by_core(mine)) by_core.push_back(lockstep::to_text(core));
  const std::vector<std::string> texts =
      world.all_gather_texts(fmt::format("{} {} {} {}", machine_cores(), cgroup_cores().value_or(0),
                                         lockstep::to_text(physical_cores(mine)), fmt::join(by_core, " ")));
  std::vector<RankCores> ranks;
  for (const std::string& text : texts) {
    RankCores rank;
    rank.node = world.topology().node_of_rank[ranks.size()];
    std::string cores;
    std::istringstream words(text);
    words >> rank.node_hardware_threads >> rank.cgroup_cores >> cores;
    rank.cores = cores_in(cores);
    for (std::string core; words >> core;) rank.by_core.push_back(cores_in(core));
    rank.hardware_threads = united(rank.by_core);
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
      consider(node, static_cast<double>(rank.cores.size()), 1, pluralized(rank.cores.size(), "core"));
      if (rank.cgroup_cores <= 0) continue;
      consider(node, rank.cgroup_cores, topology.ranks_on_node(node),
               fmt::format("{:g} cores' processor time, the limit of their cgroup", rank.cgroup_cores));
    }
  }
  if (choice.reason.empty()) choice.threads = 1;
  return choice;
}

int loader_threads(comm::HostGroup& world, int threads, int computing) {
  const ThreadChoice cores = choose_threads(cores_of_ranks(world), world.topology());
  return threads > 0 ? threads : std::max(1, cores.threads - computing);
}

std::optional<Oversubscription> oversubscription(std::span<const RankCores> ranks,
                                                 const comm::Topology& topology, int node, int threads) {
  const std::string& host = topology.host_names[static_cast<std::size_t>(node)];
  for (const RankCores& of : ranks) {
    const CoreSet& cores = of.hardware_threads;
    if (of.node != node || cores.empty()) continue;
    std::vector<std::size_t> confined;  // ranks that may use no other
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (ranks[rank].node == node && std::ranges::includes(cores, ranks[rank].hardware_threads))
        confined.push_back(rank);
    }
    const auto available = cores.size();
    if (confined.size() * static_cast<std::size_t>(threads) <= available) continue;
    if (static_cast<int>(available) >= of.node_hardware_threads)
      return Oversubscription{.by_binding = false,
                              .text = fmt::format("{}: {} with {} on {}: they take turns", host,
                                                  pluralized(confined.size(), "rank"), threads_each(threads),
                                                  pluralized(available, "core")),
                              .remedy = "start fewer ranks, or lower train.threads: expect no speed-up"};
    const std::string bound = fmt::format("core{} {}", available == 1 ? "" : "s", lockstep::to_text(cores));
    return Oversubscription{
        .by_binding = true,
        .text = confined.size() == 1 ? fmt::format("{}: rank {}, with {}, is bound to {}", host, confined[0],
                                                   threads_each(threads), bound)
                                     : fmt::format("{}: ranks {} are bound to the same {}, with {}", host,
                                                   fmt::join(confined, ", "), bound, threads_each(threads)),
        .remedy = fmt::format(
            "give each rank its own cores: mpirun {}, or srun --cpus-per-task=THREADS --cpu-bind=cores",
            comm::bind_flags)};
  }
  return std::nullopt;
}

std::vector<CoreSet> cores_of_threads(std::span<const RankCores> ranks, int rank, int threads) {
  const RankCores& mine = ranks[static_cast<std::size_t>(rank)];
  if (mine.cores.empty()) return {};  // the system does not report them
  std::size_t sharing = 0, before = 0;
  for (std::size_t other = 0; other < ranks.size(); ++other) {
    if (ranks[other].node != mine.node || !overlap(ranks[other].cores, mine.cores)) continue;
    if (ranks[other].cores != mine.cores) return {};
    if (other < static_cast<std::size_t>(rank)) ++before;
    ++sharing;
  }
  const std::vector<CoreSet>& cores = mine.by_core;
  const auto own = static_cast<std::size_t>(threads), shares = sharing * own;
  if (cores.size() < shares) return {};
  std::vector<CoreSet> of_thread;
  for (std::size_t share = before * own; share < (before + 1) * own; ++share) {
    const auto at = [&](std::size_t index) {
      return cores.begin() + static_cast<std::ptrdiff_t>(cores.size() * index / shares);
    };
    of_thread.push_back(united(std::vector<CoreSet>(at(share), at(share + 1))));
  }
  return of_thread;
}

std::vector<CoreSet> affinity_masks(const std::vector<CoreSet>& of_threads, const CoreSet& given,
                                    int threads) {
  if (of_threads.empty()) return std::vector<CoreSet>(static_cast<std::size_t>(threads), given);
  std::vector<CoreSet> masks = of_threads;
  masks[0] = united(of_threads);
  return masks;
}

bool binding_wanted(comm::HostGroup& world, const std::string& bind) {
  const char* const variable = std::getenv("LOCKSTEP_BIND");
  comm::run_on_all(world, [&] {
    if (!variable || *variable == '\0' || std::string_view(variable) == "cores" ||
        std::string_view(variable) == "none")
      return;
    throw UsageError("LOCKSTEP_BIND={}: must be cores or none", quote(variable));
  });
  const char unwanted = bind == "none" || (variable && std::string_view(variable) == "none");
  std::string of_all(static_cast<std::size_t>(world.size()), '\0');
  world.all_gather(&unwanted, sizeof unwanted, of_all.data());
  return of_all.find('\1') == std::string::npos;
}

NodeBinding binding_of(std::span<const RankCores> ranks, const comm::Topology& topology, int node,
                       int threads) {
  constexpr std::size_t max_ranks = 8;
  const std::string& host = topology.host_names[static_cast<std::size_t>(node)];
  std::vector<std::string> bindings;
  bool narrower = false;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].node != node) continue;
    const std::vector<CoreSet> shares = cores_of_threads(ranks, static_cast<int>(rank), threads);
    if (shares.empty())
      return {.bound = false,
              .text = fmt::format(
                  "{}: threads are not bound to cores, as rank {} has fewer cores to itself than threads",
                  host, rank)};
    narrower = narrower || narrows(shares, ranks[rank].hardware_threads);
    bindings.push_back(bindings.size() < max_ranks
                           ? fmt::format("rank {} to {}", rank, lockstep::to_text(united(shares)))
                           : "...");
  }
  if (!narrower) return {.bound = true, .text = ""};
  bindings.resize(std::min(bindings.size(), max_ranks + 1));
  return {.bound = true,
          .text = fmt::format("{}: threads are bound to cores, {}", host, fmt::join(bindings, ", "))};
}

void bind_threads(comm::HostGroup& world, const Log& log, int threads) {
  const std::vector<RankCores> ranks = cores_of_ranks(world);
  const std::vector<CoreSet> shares = cores_of_threads(ranks, world.rank(), threads);
  const char refused = !bind_team(affinity_masks(shares, process_cores(), threads));
  std::string of_all(ranks.size(), '\0');
  world.all_gather(&refused, sizeof refused, of_all.data());
  if (world.rank() != 0) return;
  if (const std::size_t rank = of_all.find('\1'); rank != std::string::npos)
    return log.info("note: the system does not let rank {} bind its threads to cores", rank);
  for (int node = 0; node < world.topology().nodes(); ++node) {
    const NodeBinding binding = binding_of(ranks, world.topology(), node, threads);
    if (binding.text.empty()) continue;
    if (node == 0 || !binding.bound) log.info("{}{}", binding.bound ? "" : "note: ", binding.text);
    if (!binding.bound) return;
  }
}

}  // namespace lockstep::train
