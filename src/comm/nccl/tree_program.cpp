#include "comm/nccl/tree_program.h"

#include <algorithm>
#include <optional>

namespace lockstep::comm {
namespace {

int depth_of(const TreeProgram& program) {
  int waiting = 0, most = 0;
  for (const TreeStep& step : program.steps) {
    most = std::max(most, ++waiting);
    waiting -= step.merges;
  }
  return most;
}

/// Appends the steps of `node`; source_of returns its source if a single rank has its sum.
template <class SourceOf>
void collect(ShardRange node, const SourceOf& source_of, TreeProgram& program) {
  if (const auto source = source_of(node)) {
    program.steps.push_back({.source = *source, .merges = 0});
    return;
  }
  const int left = left_leaves(node.count);
  collect({node.first, left}, source_of, program);
  collect({node.first + left, node.count - left}, source_of, program);
  ++program.steps.back().merges;
}

}  // namespace

PartialPlan::PartialPlan(const ShardMap& map, int rank) : shards(map.shards()) {
  for (int other = 0; other < map.ranks(); ++other) {
    const int partials = static_cast<int>(map.subtrees(other).size());
    partials_of_rank.push_back(partials);
    first_slot_of_rank.push_back(other == rank ? -1 : slots);
    if (other != rank) slots += partials;
    most_partials = std::max(most_partials, partials);
  }

  const auto source_of = [&](ShardRange node) -> std::optional<std::int32_t> {
    const int owner = map.owner(node.first);
    if (map.owner(node.end() - 1) != owner) return std::nullopt;
    const std::vector<ShardRange> partials = map.subtrees(owner);
    const auto partial =
        static_cast<int>(std::find(partials.begin(), partials.end(), node) - partials.begin());
    const int slot = first_slot_of_rank[static_cast<std::size_t>(owner)] + partial;
    return owner == rank ? partial : ~slot;
  };
  collect({0, map.shards()}, source_of, whole);
  whole.depth = depth_of(whole);

  for (int plane = 0; plane < partials_of_rank[static_cast<std::size_t>(rank)]; ++plane)
    own.steps.push_back({.source = plane, .merges = plane > 0 ? 1 : 0});
  own.depth = depth_of(own);
}

}  // namespace lockstep::comm
