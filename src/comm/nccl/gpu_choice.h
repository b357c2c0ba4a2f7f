// Which GPU is whose, and what NCCL must be told where ranks share one.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/host_group.h"

namespace lockstep::comm {

struct Sharing {
  bool shared = false;  ///< two ranks of one machine have the same GPU
  std::string problem;  ///< and some rank has no leave for it: what to do
};

/// address: of the GPU that this rank would take; none: it has no GPU. allowed: LOCKSTEP_SHARE_GPU=1 in the
/// environment says the same. Collective, the same on all ranks.
Sharing find_sharing(HostGroup& host, const std::string& address, bool allowed);

/// Two ranks of one machine with the same GPU, by its PCI bus address: the first such pair, or {-1, -1}.
/// Ranks without one have none. NCCL asks no more: slices of one card (MIG) are one GPU to it.
std::pair<int, int> shared_gpu(const Topology& topology, const std::vector<std::string>& gpu_of_rank);

/// "ranks 0 and 1 both use GPU 0000:3b:00.0 of node07; ..."
std::string sharing_text(const Topology& topology, const std::vector<std::string>& gpu_of_rank,
                         std::pair<int, int> ranks);

/// The environment in which NCCL takes ranks of one GPU for ranks of different machines, which talk by
/// sockets: names and values for `rank`.
std::vector<std::pair<std::string, std::string>> sharing_environment(int rank);

}  // namespace lockstep::comm
