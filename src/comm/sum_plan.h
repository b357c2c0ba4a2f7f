// SumPlan: the additions of each group of ranks in sums over one shard map, computed once. A group is the
// ranks of a node (CPUs share memory) or a single rank (a GPU).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/comm/reduction_tree.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::comm {

/// Reads the source, then adds the newest waiting value to it, `merges` times; the result waits.
struct SumStep {
  std::int32_t source = 0;  ///< an accumulator of the group; or ~slot of a partial sum
  std::int32_t merges = 0;  ///< number of inner tree nodes whose last source this is
};

/// Maximal number of values that wait at once on a GPU: enough for 2^15 partial sums.
inline constexpr int deepest_tree = 16;

/// A sum along the tree, with sources in the order of the tree's leaves. The last value that waits is the
/// sum. cpu_sums.h and nccl/kernels.h carry it out.
struct SumProgram {
  SumProgram() = default;
  /// The program of the tree node `range`: source_of(node) returns the source that holds the node's sum, if
  /// there is one; otherwise its children are added. A single leaf always has a source.
  using SourceOf = std::function<bool(ShardRange node, std::int32_t& source)>;
  SumProgram(ShardRange range, const SourceOf& source_of);
  /// Accumulators 0 to count - 1, left to right.
  static SumProgram fold(int count);

  std::vector<SumStep> steps;
  int depth = 0;  ///< maximal number of values that wait at once, including the last source
  const SumStep* on_device = nullptr;  ///< a copy of the steps in device memory, if a GPU adds

 private:
  void collect(ShardRange range, const SourceOf& source_of);
  void measure_depth();
};

/// True if sums of `dtype` are rounded when they are sent as `comm_dtype`.
constexpr bool needs_cast(DType comm_dtype, DType dtype) {
  return dtype == DType::float32 && comm_dtype != DType::float32;
}

/// The steps of the tree over accumulators 0 to count - 1, computed one by one, for code without memory for
/// them.
struct TreeSteps {
  int count = 0;

  constexpr SumStep operator[](int i) const {
    int merges = 0;
    if (i + 1 < count) {
      for (int next = i + 1; next % 2 == 0; next /= 2) ++merges;  // nodes of powers of two end here
    } else {
      for (int before = i; before > 0; before &= before - 1) ++merges;  // all that wait
    }
    return {.source = i, .merges = merges};
  }
};

/// A program carried out in registers: load(source) returns a value, add(left, right) that of an inner node.
/// steps: an array, or TreeSteps. The newest waiting value is always waiting[0], so that no register index
/// depends on data.
template <int Depth, class Steps, class Load, class Add>
constexpr auto sum_along_tree(const Steps& steps, int count, const Load& load, const Add& add) {
  decltype(load(0)) waiting[Depth] = {};
  for (int i = 0; i < count; ++i) {
    const SumStep step = steps[i];
    auto value = load(step.source);
    for (int left = step.merges; left > 0; --left) {
      value = add(waiting[0], value);
      for (int k = 0; k + 1 < Depth; ++k) waiting[k] = waiting[k + 1];
    }
    for (int k = Depth - 1; k > 0; --k) waiting[k] = waiting[k - 1];
    waiting[0] = value;
  }
  return waiting[0];
}

/// The plan of one group. A "partial sum" is that of a maximal sub-tree whose shards are all in one group.
/// Groups exchange partial sums, so every addition above them follows the tree on any nodes.
struct SumPlan {
  /// group_of_rank: ascending by rank within a group, groups numbered from 0.
  SumPlan(const ShardMap& map, std::span<const int> group_of_rank, int group);

  struct Accumulator {
    int rank = 0;
    int index = 0;
  };

  int shards = 0;
  std::vector<Accumulator> accumulators;  ///< of the group's ranks; a step's source is an index here
  std::vector<int> accumulators_of_rank;  ///< of all ranks
  std::vector<int> partials_of_group;     ///< how many partial sums each group has
  int max_partials = 0;                   ///< of a group
  /// Partial sums that this group receives, in slots by group; first_slot_of_group is -1 for this one.
  int received = 0;
  std::vector<int> first_slot_of_group;

  std::vector<SumProgram> partials;  ///< this group's partial sums, from its accumulators
  SumProgram whole;                  ///< the sum over all shards, from its accumulators and the slots
  SumProgram whole_of_partials;  ///< the same from partial sums alone; the group's own are in the last slots
  int depth = 0;                 ///< of the deepest program here
};

}  // namespace lockstep::comm
