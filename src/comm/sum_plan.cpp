// Finding the terms of each node and the additions over them.
#include "comm/sum_plan.h"

#include <algorithm>
#include <functional>

namespace lockstep::comm {
namespace {

/// Walks the tree for one node of the machine.
class Planner {
 public:
  Planner(const ShardMap& map, const Topology& topology, int node)
      : map_(map), topology_(topology), node_(node) {}

  /// The node of the machine that holds all of the range, or -1.
  int home(ShardRange range) const {
    const int first = map_.owner(range.first);
    const int last = map_.owner(range.end() - 1);
    const int node = node_at(first);
    for (int rank = first + 1; rank <= last; ++rank) {
      if (node_at(rank) != node) return -1;
    }
    return node;
  }

  /// The sum of `range` from this node's planes and, where it goes beyond this node, received terms.
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
        const auto term = std::find(received.begin(), received.end(), part);
        if (term == received.end()) return -1;
        source.index = static_cast<int>(term - received.begin());
      }
      sources.push_back(source);
      return static_cast<int>(sources.size()) - 1;
    });
    return {std::move(program), std::move(sources)};
  }

  /// The sum of `range` from `terms` alone.
  SumPlan::Sum sum_of(const std::vector<ShardRange>& terms, ShardRange range) const {
    std::vector<SumPlan::Source> sources;
    SumProgram program(range, [&](ShardRange part) {
      const auto term = std::find(terms.begin(), terms.end(), part);
      if (term == terms.end()) return -1;
      sources.push_back({-1, static_cast<int>(term - terms.begin())});
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

/// The terms of every node, left to right.
std::vector<std::vector<ShardRange>> terms_by_node(const Planner& planner, int nodes, int shards) {
  std::vector<std::vector<ShardRange>> terms(static_cast<std::size_t>(nodes));
  const std::function<void(ShardRange)> visit = [&](ShardRange range) {
    if (const int node = planner.home(range); node >= 0) {
      terms[static_cast<std::size_t>(node)].push_back(range);
      return;
    }
    const int left = left_leaves(range.count);
    visit({range.first, left});
    visit({range.first + left, range.count - left});
  };
  visit({0, shards});
  return terms;
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
  const auto terms = terms_by_node(planner, topology.nodes(), map.shards());

  SumPlan plan;
  plan.shards = map.shards();
  for (const ShardRange term : terms[static_cast<std::size_t>(node)])
    plan.terms.push_back(planner.sum(term, {}));
  std::vector<ShardRange> elsewhere = joined_but(terms, node);
  plan.whole = planner.sum({0, map.shards()}, elsewhere);
  const auto& own = terms[static_cast<std::size_t>(node)];
  elsewhere.insert(elsewhere.end(), own.begin(), own.end());
  plan.whole_of_terms = planner.sum_of(elsewhere, {0, map.shards()});
  for (int other = 0; other < topology.nodes(); ++other) {
    plan.terms_of_node.push_back(static_cast<int>(terms[static_cast<std::size_t>(other)].size()));
    if (other != node) plan.received += plan.terms_of_node.back();
  }
  for (int rank = 0; rank < map.ranks(); ++rank)
    plan.planes_of_rank.push_back(static_cast<int>(map.subtrees(rank).size()));
  plan.scratch_bytes =
      std::max(plan.whole.program.scratch_bytes(), plan.whole_of_terms.program.scratch_bytes());
  for (const SumPlan::Sum& term : plan.terms) {
    plan.scratch_bytes = std::max(plan.scratch_bytes, term.program.scratch_bytes());
  }
  return plan;
}

}  // namespace lockstep::comm
