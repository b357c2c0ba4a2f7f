// Making topologies, and questions to them.
#include "lockstep/comm/topology.h"

#include <algorithm>

#include "comm/make_topology.h"

namespace lockstep::comm {

int Topology::ranks_on_node(int node) const {
  return static_cast<int>(std::count(node_of_rank.begin(), node_of_rank.end(), node));
}

bool Topology::node_major() const {
  // Nodes are numbered by first rank, so the numbers of consecutive ranks never fall when each node's ranks
  // are together.
  return std::is_sorted(node_of_rank.begin(), node_of_rank.end());
}

Topology make_topology(const std::vector<int>& node_of_rank, const std::vector<std::string>& host_of_rank) {
  Topology topology;
  std::vector<int> nodes;
  std::vector<int> ranks_on_node;
  for (std::size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    const auto node =
        static_cast<std::size_t>(std::find(nodes.begin(), nodes.end(), node_of_rank[rank]) - nodes.begin());
    if (node == nodes.size()) {
      nodes.push_back(node_of_rank[rank]);
      ranks_on_node.push_back(0);
      topology.host_names.push_back(host_of_rank[rank]);
    }
    topology.node_of_rank.push_back(static_cast<int>(node));
    topology.local_rank_of_rank.push_back(ranks_on_node[node]++);
  }
  return topology;
}

std::vector<int> neighbours(const std::vector<int>& node_of_rank, int rank) {
  std::vector<int> ranks;
  for (std::size_t other = 0; other < node_of_rank.size(); ++other) {
    if (node_of_rank[other] == node_of_rank[static_cast<std::size_t>(rank)])
      ranks.push_back(static_cast<int>(other));
  }
  return ranks;
}

}  // namespace lockstep::comm
