// Whether ranks share a GPU, and the environment that NCCL needs for it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/host_group.h"

namespace lockstep::comm {

struct Sharing {
  bool shared = false;  ///< two ranks of one node have the same GPU
  std::string problem;  ///< some rank does not permit it: what to do
};

/// address: of the GPU that this rank would use; empty: none. allowed: LOCKSTEP_SHARE_GPU=1 in the
/// environment has the same effect. Collective, the same on all ranks.
Sharing find_sharing(HostGroup& host, const std::string& address, bool allowed);

/// The first two ranks of one node with the same GPU, by its PCI bus address, or {-1, -1}; an empty address
/// means no GPU. NCCL compares the same: to it the slices of one card (MIG) are one GPU.
std::pair<int, int> shared_gpu(const Topology& topology, const std::vector<std::string>& gpu_of_rank);

/// "ranks 0 and 1 both use GPU 0000:3b:00.0 of node07; ..."
std::string sharing_text(const Topology& topology, const std::vector<std::string>& gpu_of_rank,
                         std::pair<int, int> ranks);

/// Environment variables for `rank` that make NCCL treat ranks of one GPU as ranks of different nodes, which
/// talk by sockets.
std::vector<std::pair<std::string, std::string>> sharing_environment(int rank);

}  // namespace lockstep::comm
