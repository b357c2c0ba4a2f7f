#include "comm/nccl.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>

namespace lockstep::comm {
namespace {

bool says_one(const char* name) {
  const char* const value = std::getenv(name);
  return value && std::strcmp(value, "1") == 0;
}

}  // namespace

Sharing find_sharing(HostGroup& host, const std::string& address, bool allowed) {
  const bool may_share = allowed || says_one("LOCKSTEP_SHARE_GPU");
  std::vector<std::string> gpu_of_rank = host.all_gather_texts((may_share ? "+" : "-") + address);
  bool all_may = true;
  for (std::string& gpu : gpu_of_rank) {
    all_may = all_may && gpu.front() == '+';
    gpu.erase(0, 1);
  }
  const std::pair<int, int> ranks = shared_gpu(host.topology(), gpu_of_rank);
  const bool shared = ranks.first >= 0;
  return {.shared = shared,
          .problem = shared && !all_may ? sharing_text(host.topology(), gpu_of_rank, ranks) : ""};
}

std::pair<int, int> shared_gpu(const Topology& topology, const std::vector<std::string>& gpu_of_rank) {
  for (std::size_t rank = 1; rank < gpu_of_rank.size(); ++rank) {
    for (std::size_t other = 0; other < rank; ++other) {
      if (topology.node_of_rank[other] == topology.node_of_rank[rank] &&
          gpu_of_rank[other] == gpu_of_rank[rank] && !gpu_of_rank[rank].empty())
        return {static_cast<int>(other), static_cast<int>(rank)};
    }
  }
  return {-1, -1};
}

std::string sharing_text(const Topology& topology, const std::vector<std::string>& gpu_of_rank,
                         std::pair<int, int> ranks) {
  const auto first = static_cast<std::size_t>(ranks.first);
  const auto node = static_cast<std::size_t>(topology.node_of_rank[first]);
  return fmt::format(
      "ranks {} and {} both use GPU {} of {}, which runs {} ranks; start one rank a GPU, and let each see "
      "its own or all of them (LOCKSTEP_SHARE_GPU=1 lets ranks share one: slow, for tests)",
      ranks.first, ranks.second, gpu_of_rank[first], topology.host_names[node],
      topology.ranks_on_node(topology.node_of_rank[first]));
}

std::vector<std::pair<std::string, std::string>> sharing_environment(int rank) {
  return {{"NCCL_HOSTID", fmt::format("lockstep-rank-{}", rank)},
          {"NCCL_NET", "Socket"},
          {"NCCL_P2P_DISABLE", "1"},
          {"NCCL_SHM_DISABLE", "1"},
          {"NCCL_NVLS_ENABLE", "0"}};
}

}  // namespace lockstep::comm
