// TreeProgram: a sum along the tree as a GPU adds it, with sources in the order of the tree's leaves. It is
// computed once for a shard map.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/comm/reduction_tree.h"

namespace lockstep::comm {

/// Loads the source, then adds the newest waiting value to it, `merges` times.
struct TreeStep {
  std::int32_t source = 0;  ///< a plane of this rank; or ~slot of the partial sums it receives
  std::int32_t merges = 0;  ///< inner nodes of which this source is the last
};

/// The most values that wait at once: enough for 2^15 partial sums.
inline constexpr int deepest_tree = 16;

struct TreeProgram {
  std::vector<TreeStep> steps;
  int depth = 0;                        ///< the most values that wait at once, the last source included
  const TreeStep* on_device = nullptr;  ///< a copy of the steps in device memory
};

/// The sum, in registers: load(source) gives a value, add(left, right) that of an inner node. The kernel and
/// its tests share it. The newest waiting value is always waiting[0], so that no register index depends on
/// data.
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

/// Where the partial sums of one shard map are, seen from one rank. A "partial sum" belongs to a maximal
/// sub-tree of a rank's block of shards and fills one of its planes. Slots number the partial sums of all
/// other ranks, in rank order.
struct PartialPlan {
  PartialPlan(const ShardMap& map, int rank);

  int shards;
  std::vector<int> partials_of_rank;
  std::vector<int> first_slot_of_rank;  ///< -1 for this rank itself
  int slots = 0;
  int most_partials = 0;  ///< of a rank
  TreeProgram whole;      ///< the sum over all shards, from this rank's planes and the slots, in tree order
  TreeProgram own;        ///< the sum of this rank's planes, left to right
};

}  // namespace lockstep::comm
