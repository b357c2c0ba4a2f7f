#include "train/binding.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/text.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::train {
namespace {

/// Whether that makes any difference to what was given.
bool confines(const std::vector<CoreSet>& masks, const CoreSet& given) {
  return std::ranges::any_of(masks, [&](const CoreSet& mask) { return mask != given; });
}

/// False if the system refuses.
bool bind_team(const std::vector<CoreSet>& masks) {
  if (!threads_bound() && !confines(masks, given_cores())) return true;
  const int threads = static_cast<int>(masks.size());
  int refused = 0;
#pragma omp parallel num_threads(threads) reduction(+ : refused)
  refused += !bind_thread(masks[static_cast<std::size_t>(omp_get_thread_num())]);
  return refused == 0;
}

}  // namespace

std::vector<CoreSet> shares_of(std::span<const RankCores> ranks, int rank, int threads) {
  const RankCores& mine = ranks[static_cast<std::size_t>(rank)];
  if (mine.cores.empty()) return {};  // the system does not tell
  std::size_t sharing = 0, before = 0;
  for (std::size_t other = 0; other < ranks.size(); ++other) {
    if (ranks[other].node != mine.node || !overlap(ranks[other].cores, mine.cores)) continue;
    if (ranks[other].cores != mine.cores) return {};
    if (other < static_cast<std::size_t>(rank)) ++before;
    ++sharing;
  }
  const std::vector<CoreSet>& cores = mine.of_core;
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

std::vector<CoreSet> masks_of(const std::vector<CoreSet>& shares, const CoreSet& given, int threads) {
  if (shares.empty()) return std::vector<CoreSet>(static_cast<std::size_t>(threads), given);
  std::vector<CoreSet> masks = shares;
  masks[0] = united(shares);
  return masks;
}

bool binding_wanted(comm::HostGroup& world, const std::string& bind) {
  const char* const variable = std::getenv("LOCKSTEP_BIND");
  comm::run_on_all(world, [&] {
    if (!variable || *variable == '\0' || std::string_view(variable) == "cores" ||
        std::string_view(variable) == "none")
      return;
    throw UsageError("LOCKSTEP_BIND={}: is neither cores nor none", quote(variable));
  });
  const char unwanted = bind == "none" || (variable && std::string_view(variable) == "none");
  std::string of_all(static_cast<std::size_t>(world.size()), '\0');
  world.all_gather(&unwanted, sizeof unwanted, of_all.data());
  return of_all.find('\1') == std::string::npos;
}

NodeBinding binding_of(std::span<const RankCores> ranks, const comm::Topology& topology, int node,
                       int threads) {
  constexpr std::size_t most_shown = 8;
  const std::string& host = topology.host_names[static_cast<std::size_t>(node)];
  std::vector<std::string> shown;
  bool confined = false;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].node != node) continue;
    const std::vector<CoreSet> shares = shares_of(ranks, static_cast<int>(rank), threads);
    if (shares.empty())
      return {.bound = false,
              .text = fmt::format(
                  "{}: threads are not bound to cores, as rank {} has fewer cores of its own than threads",
                  host, rank)};
    confined = confined || confines(shares, ranks[rank].hardware_threads);
    shown.push_back(shown.size() < most_shown
                        ? fmt::format("rank {} to {}", rank, lockstep::to_text(united(shares)))
                        : "...");
  }
  if (!confined) return {.bound = true, .text = ""};
  shown.resize(std::min(shown.size(), most_shown + 1));
  return {.bound = true,
          .text = fmt::format("{}: threads are bound to cores, {}", host, fmt::join(shown, ", "))};
}

void bind_threads(comm::HostGroup& world, const Log& log, int threads) {
  const std::vector<RankCores> ranks = cores_of_ranks(world);
  const std::vector<CoreSet> shares = shares_of(ranks, world.rank(), threads);
  const char refused = !bind_team(masks_of(shares, given_cores(), threads));
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
