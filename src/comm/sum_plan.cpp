#include "comm/sum_plan.h"

#include <algorithm>

namespace lockstep::comm {

SumProgram::SumProgram(ShardRange range, const SourceOf& source_of) {
  collect(range, source_of);
  measure_depth();
}

SumProgram SumProgram::fold(int count) {
  SumProgram program;
  for (int i = 0; i < count; ++i) program.steps.push_back({.source = i, .merges = i > 0 ? 1 : 0});
  program.measure_depth();
  return program;
}

void SumProgram::collect(ShardRange range, const SourceOf& source_of) {
  std::int32_t source = 0;
  if (source_of(range, source)) {
    steps.push_back({.source = source, .merges = 0});
    return;
  }
  const int left = left_leaves(range.count);
  collect({range.first, left}, source_of);
  collect({range.first + left, range.count - left}, source_of);
  ++steps.back().merges;
}

void SumProgram::measure_depth() {
  int waiting = 0;
  for (const SumStep& step : steps) {
    depth = std::max(depth, ++waiting);
    waiting -= step.merges;
  }
}

namespace {

/// Calls use(group, range) for the partial sums of all groups, left to right.
template <class Use>
void for_each_partial(const ShardMap& map, std::span<const int> group_of_rank, ShardRange range,
                      const Use& use) {
  const int first = map.owner(range.first), last = map.owner(range.end() - 1);
  const int group = group_of_rank[static_cast<std::size_t>(first)];
  if (std::all_of(group_of_rank.begin() + first, group_of_rank.begin() + last + 1,
                  [&](int other) { return other == group; }))
    return use(group, range);
  const int left = left_leaves(range.count);
  for_each_partial(map, group_of_rank, {range.first, left}, use);
  for_each_partial(map, group_of_rank, {range.first + left, range.count - left}, use);
}

bool find(const std::vector<ShardRange>& ranges, ShardRange range, std::int32_t& index) {
  const auto found = std::find(ranges.begin(), ranges.end(), range);
  index = static_cast<std::int32_t>(found - ranges.begin());
  return found != ranges.end();
}

}  // namespace

SumPlan::SumPlan(const ShardMap& map, std::span<const int> group_of_rank, int group) : shards(map.shards()) {
  std::vector<ShardRange> summed;  // by the accumulators
  for (int rank = 0; rank < map.ranks(); ++rank) {
    const std::vector<ShardRange> subtrees = map.subtrees(rank);
    accumulators_of_rank.push_back(static_cast<int>(subtrees.size()));
    if (group_of_rank[static_cast<std::size_t>(rank)] != group) continue;
    for (int index = 0; index < accumulators_of_rank.back(); ++index) accumulators.push_back({rank, index});
    summed.insert(summed.end(), subtrees.begin(), subtrees.end());
  }

  const int groups = 1 + *std::max_element(group_of_rank.begin(), group_of_rank.end());
  std::vector<std::vector<ShardRange>> ranges(static_cast<std::size_t>(groups));  // of the partial sums
  for_each_partial(map, group_of_rank, {0, shards},
                   [&](int of, ShardRange range) { ranges[static_cast<std::size_t>(of)].push_back(range); });
  std::vector<ShardRange> slots;
  for (int other = 0; other < groups; ++other) {
    const std::vector<ShardRange>& theirs = ranges[static_cast<std::size_t>(other)];
    partials_of_group.push_back(static_cast<int>(theirs.size()));
    max_partials = std::max(max_partials, partials_of_group.back());
    first_slot_of_group.push_back(other == group ? -1 : static_cast<int>(slots.size()));
    if (other != group) slots.insert(slots.end(), theirs.begin(), theirs.end());
  }
  received = static_cast<int>(slots.size());

  const SumProgram::SourceOf accumulator_or_slot = [&](ShardRange node, std::int32_t& source) {
    if (find(summed, node, source)) return true;
    if (!find(slots, node, source)) return false;
    source = ~source;
    return true;
  };
  const std::vector<ShardRange>& own = ranges[static_cast<std::size_t>(group)];
  for (const ShardRange partial : own) partials.emplace_back(partial, accumulator_or_slot);
  whole = SumProgram({0, shards}, accumulator_or_slot);
  slots.insert(slots.end(), own.begin(), own.end());
  whole_of_partials = SumProgram({0, shards}, [&](ShardRange node, std::int32_t& source) {
    const bool found = find(slots, node, source);
    source = ~source;
    return found;
  });
  depth = std::max(whole.depth, whole_of_partials.depth);
  for (const SumProgram& partial : partials) depth = std::max(depth, partial.depth);
}

}  // namespace lockstep::comm
