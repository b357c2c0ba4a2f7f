// Where the ranks of a communicator run: which machine, and which place on it.
#pragma once

#include <string>
#include <vector>

namespace lockstep::comm {

/// Ranks are numbered node-major by the launchers we support; Topology tells whether that holds.
struct Topology {
  std::vector<int> node_of_rank;        ///< index into host_names, by rank
  std::vector<int> local_rank_of_rank;  ///< 0.. within the node
  std::vector<std::string> host_names;  ///< by node, in order of first rank

  int nodes() const { return static_cast<int>(host_names.size()); }
  int ranks_on_node(int node) const;
  bool node_major() const;  ///< ranks of a node are consecutive
};

}  // namespace lockstep::comm
