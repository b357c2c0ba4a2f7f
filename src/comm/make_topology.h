// Topologies from what the ranks know of each other.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/topology.h"

namespace lockstep::comm {

/// Nodes are renumbered in order of their first rank.
Topology make_topology(const std::vector<int>& node_of_rank, const std::vector<std::string>& host_of_rank);

/// The ranks on the node of `rank`, itself included, ascending.
std::vector<int> neighbours(const std::vector<int>& node_of_rank, int rank);

}  // namespace lockstep::comm
