// A sum along the tree as a GPU adds it: sources in the order of the tree's leaves, and where inner nodes
// close. Which sources there are on each rank is worked out once for a shard map.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/comm/reduction_tree.h"

namespace lockstep::comm {

/// Take the source, then add it to the values that wait: the last one `merges` times over.
struct TreeStep {
  std::int32_t source = 0;  ///< a plane of this rank; or ~slot of the partial sums it receives
  std::int32_t merges = 0;  ///< inner nodes of which this source is the last
};

/// Values that may wait at once: enough for 2^15 partial sums.
inline constexpr int deepest_tree = 16;

struct TreeProgram {
  std::vector<TreeStep> steps;
  int depth = 0;                        ///< values that wait at once, the last source included
  const TreeStep* on_device = nullptr;  ///< the steps, where the additions are made: put there once
};

/// The sum, in registers: load(source) gives a value, add(left, right) an inner node's. One text for the
/// kernel and for what it is tested against. The newest waiting value is always waiting[0], so that no
/// register is chosen at run time.
template <int Depth, class Load, class Add>
constexpr auto sum_along_tree(const TreeStep* steps, int count, const Load& load, const Add& add) {
  decltype(load(0)) waiting[Depth] = {};
  for (int i = 0; i < count; ++i) {
    auto value = load(steps[i].source);
    for (int left = steps[i].merges; left > 0; --left) {
      value = add(waiting[0], value);
      for (int k = 0; k + 1 < Depth; ++k) waiting[k] = waiting[k + 1];
    }
    for (int k = Depth - 1; k > 0; --k) waiting[k] = waiting[k - 1];
    waiting[0] = value;
  }
  return waiting[0];
}

/// Who holds what for the sums over one shard map, seen from one rank. A "partial sum" is a maximal sub-tree
/// of a rank's block of shards: what lies in one of its planes. Slots number the partial sums of all other
/// ranks, in rank order.
struct PartialPlan {
  PartialPlan(const ShardMap& map, int rank);

  int shards;
  std::vector<int> partials_of_rank;
  std::vector<int> first_slot_of_rank;  ///< of this rank itself: none, -1
  int slots = 0;
  int most_partials = 0;  ///< of a rank
  TreeProgram whole;      ///< the sum over all shards, from this rank's planes and the slots, in tree order
  TreeProgram own;        ///< the sum of this rank's planes, left to right
};

}  // namespace lockstep::comm
