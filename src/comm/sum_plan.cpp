#include "comm/sum_plan.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace lockstep::comm {
namespace {

// Operands and results are the same memory or do not overlap at all, which ivdep tells the compiler.

template <class T>
void add(const T* left, const T* right, T* result, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) result[i] = left[i] + right[i];
}

template <class T>
void add_to_both(const T* left, const T* right, T* first, T* second, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    const T sum = left[i] + right[i];
    first[i] = sum;
    second[i] = sum;
  }
}

void copy(const std::byte* block, std::size_t bytes, std::span<std::byte* const> destinations,
          std::size_t first) {
  for (std::byte* destination : destinations) {
    if (destination + first != block) std::memcpy(destination + first, block, bytes);
  }
}

}  // namespace

SumProgram::SumProgram(ShardRange range, const std::function<int(ShardRange)>& source_of) {
  result_ = build(range, source_of, 0);
}

int SumProgram::build(ShardRange range, const std::function<int(ShardRange)>& source_of, int free_block) {
  const int source = source_of(range);
  if (source >= 0) return source;
  const int left_count = left_leaves(range.count);
  const int left = build({range.first, left_count}, source_of, free_block);
  const int right =
      build({range.first + left_count, range.count - left_count}, source_of, free_block + (left < 0 ? 1 : 0));
  scratch_blocks_ = std::max(scratch_blocks_, free_block + 1);
  additions_.push_back({left, right, ~free_block});
  return ~free_block;
}

void SumProgram::evaluate(DType dtype, std::int64_t count, std::span<const std::byte* const> sources,
                          std::span<std::byte* const> destinations, std::byte* scratch) const {
  const std::size_t bytes = static_cast<std::size_t>(count) * bytes_of(dtype);
  if (dtype == DType::float32) {
    evaluate_as<float>(bytes, sources, destinations, scratch);
  } else {
    evaluate_as<double>(bytes, sources, destinations, scratch);
  }
}

template <class T>
void SumProgram::evaluate_as(std::size_t bytes, std::span<const std::byte* const> sources,
                             std::span<std::byte* const> destinations, std::byte* scratch) const {
  for (std::size_t first = 0; first < bytes; first += block_bytes) {
    const std::size_t block = std::min(block_bytes, bytes - first);
    const std::size_t count = block / sizeof(T);
    const auto operand = [&](int number) {
      return reinterpret_cast<const T*>(number >= 0
                                            ? sources[static_cast<std::size_t>(number)] + first
                                            : scratch + static_cast<std::size_t>(~number) * block_bytes);
    };
    const auto destination = [&](std::size_t number) {
      return reinterpret_cast<T*>(destinations[number] + first);
    };
    if (additions_.empty()) {
      copy(reinterpret_cast<const std::byte*>(operand(result_)), block, destinations, first);
      continue;
    }
    for (std::size_t i = 0; i + 1 < additions_.size(); ++i) {
      const Addition& addition = additions_[i];
      add(operand(addition.left), operand(addition.right),
          reinterpret_cast<T*>(scratch + static_cast<std::size_t>(~addition.result) * block_bytes), count);
    }
    const Addition& last = additions_.back();
    if (destinations.size() == 1) {
      add(operand(last.left), operand(last.right), destination(0), count);
    } else {
      add_to_both(operand(last.left), operand(last.right), destination(0), destination(1), count);
      copy(destinations[0] + first, block, destinations.subspan(2), first);
    }
  }
}

namespace {

/// Walks the tree for one node (a computer; a tree node is called a range here).
class Planner {
 public:
  Planner(const ShardMap& map, const Topology& topology, int node)
      : map_(map), topology_(topology), node_(node) {}

  /// The node that holds all shards of the range, or -1.
  int home(ShardRange range) const {
    const int first = map_.owner(range.first);
    const int last = map_.owner(range.end() - 1);
    const int node = node_at(first);
    for (int rank = first + 1; rank <= last; ++rank) {
      if (node_at(rank) != node) return -1;
    }
    return node;
  }

  /// The sum of `range` from this node's planes and, where it goes beyond this node, received partial sums.
  SumPlan::Sum sum(ShardRange range, const std::vector<ShardRange>& received) const {
    std::vector<SumPlan::Source> sources;
    SumProgram program(range, [&](ShardRange part) {
      SumPlan::Source source;
      const int owner = map_.owner(part.first);
      if (home(part) == node_ && map_.owner(part.end() - 1) == owner) {
        const std::vector<ShardRange> subtrees = map_.subtrees(owner);
        source.local_rank = topology_.local_rank_of_rank[static_cast<std::size_t>(owner)];
        source.index = static_cast<int>(std::find(subtrees.begin(), subtrees.end(), part) - subtrees.begin());
      } else {
        const auto partial = std::find(received.begin(), received.end(), part);
        if (partial == received.end()) return -1;
        source.index = static_cast<int>(partial - received.begin());
      }
      sources.push_back(source);
      return static_cast<int>(sources.size()) - 1;
    });
    return {std::move(program), std::move(sources)};
  }

  /// The sum of `range` from `partials` alone.
  SumPlan::Sum sum_of(const std::vector<ShardRange>& partials, ShardRange range) const {
    std::vector<SumPlan::Source> sources;
    SumProgram program(range, [&](ShardRange part) {
      const auto partial = std::find(partials.begin(), partials.end(), part);
      if (partial == partials.end()) return -1;
      sources.push_back({-1, static_cast<int>(partial - partials.begin())});
      return static_cast<int>(sources.size()) - 1;
    });
    return {std::move(program), std::move(sources)};
  }

 private:
  int node_at(int rank) const { return topology_.node_of_rank[static_cast<std::size_t>(rank)]; }

  const ShardMap& map_;
  const Topology& topology_;
  int node_;
};

/// The partial sums of every node, left to right.
std::vector<std::vector<ShardRange>> partials_by_node(const Planner& planner, int nodes, int shards) {
  std::vector<std::vector<ShardRange>> partials(static_cast<std::size_t>(nodes));
  const std::function<void(ShardRange)> visit = [&](ShardRange range) {
    if (const int node = planner.home(range); node >= 0) {
      partials[static_cast<std::size_t>(node)].push_back(range);
      return;
    }
    const int left = left_leaves(range.count);
    visit({range.first, left});
    visit({range.first + left, range.count - left});
  };
  visit({0, shards});
  return partials;
}

std::vector<ShardRange> joined_but(const std::vector<std::vector<ShardRange>>& lists, int left_out) {
  std::vector<ShardRange> joined;
  for (std::size_t i = 0; i < lists.size(); ++i) {
    if (static_cast<int>(i) != left_out) joined.insert(joined.end(), lists[i].begin(), lists[i].end());
  }
  return joined;
}

}  // namespace

SumPlan make_sum_plan(const ShardMap& map, const Topology& topology, int node) {
  const Planner planner(map, topology, node);
  const auto partials = partials_by_node(planner, topology.nodes(), map.shards());

  SumPlan plan;
  plan.shards = map.shards();
  for (const ShardRange partial : partials[static_cast<std::size_t>(node)])
    plan.partials.push_back(planner.sum(partial, {}));
  std::vector<ShardRange> elsewhere = joined_but(partials, node);
  plan.whole = planner.sum({0, map.shards()}, elsewhere);
  const auto& own = partials[static_cast<std::size_t>(node)];
  elsewhere.insert(elsewhere.end(), own.begin(), own.end());
  plan.whole_of_partials = planner.sum_of(elsewhere, {0, map.shards()});
  for (int other = 0; other < topology.nodes(); ++other) {
    plan.partials_of_node.push_back(static_cast<int>(partials[static_cast<std::size_t>(other)].size()));
    if (other != node) plan.received += plan.partials_of_node.back();
  }
  for (int rank = 0; rank < map.ranks(); ++rank)
    plan.planes_of_rank.push_back(static_cast<int>(map.subtrees(rank).size()));
  plan.scratch_bytes =
      std::max(plan.whole.program.scratch_bytes(), plan.whole_of_partials.program.scratch_bytes());
  for (const SumPlan::Sum& partial : plan.partials) {
    plan.scratch_bytes = std::max(plan.scratch_bytes, partial.program.scratch_bytes());
  }
  return plan;
}

}  // namespace lockstep::comm
