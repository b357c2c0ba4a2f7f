// Questions to a topology.
#include "lockstep/comm/topology.h"

#include <algorithm>

namespace lockstep::comm {

int Topology::ranks_on_node(int node) const {
  return static_cast<int>(std::count(node_of_rank.begin(), node_of_rank.end(), node));
}

bool Topology::node_major() const {
  // Nodes are numbered by first rank, so the numbers of consecutive ranks never fall when each node's ranks
  // are together.
  return std::is_sorted(node_of_rank.begin(), node_of_rank.end());
}

}  // namespace lockstep::comm
