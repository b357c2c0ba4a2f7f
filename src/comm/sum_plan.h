// Who adds what for the sums over one shard map: worked out once, used for every sum.
#pragma once

#include <vector>

#include "comm/sum_program.h"
#include "lockstep/comm/reduction_tree.h"
#include "lockstep/comm/topology.h"

namespace lockstep::comm {

/// The plan of one node. A "term" is the largest sub-tree of the tree whose shards all lie on one node; nodes
/// exchange terms, so that every addition above them is made in tree order wherever the ranks run.
struct SumPlan {
  /// A plane of a rank of this node, or (local_rank < 0) a term received from another node.
  struct Source {
    int local_rank = -1;
    int index = 0;  ///< of the plane; or of the term among all those received
  };
  struct Sum {
    SumProgram program;
    std::vector<Source> sources;
  };

  int shards = 0;
  std::vector<Sum> terms;  ///< this node's terms, from its ranks' planes
  Sum whole;               ///< the sum of everything, from this node's planes and the terms it receives
  Sum whole_of_terms;      ///< the same from terms alone: this node's are counted behind those it receives
  std::vector<int> terms_of_node;  ///< how many terms each node has
  int received = 0;                ///< terms that this node receives
  std::vector<int> planes_of_rank;
  std::size_t scratch_bytes = 0;  ///< enough for every program here
};

SumPlan make_sum_plan(const ShardMap& map, const Topology& topology, int node);

}  // namespace lockstep::comm
