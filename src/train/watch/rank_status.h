// Private to the module: the status of every rank of the job, on every node.
#pragma once

#include <netinet/in.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "base/progress.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::train {

/// A table with the status of each rank, one per node, in memory that the processes of the node share. During
/// its life, a rank publishes its status in its own row. Rows of other nodes arrive as datagrams, and are as
/// old as the last one.
/// Neither way replaces the other. A row in shared memory costs a rank only plain stores, and still has its
/// position, up to the bucket, after its process was stopped or killed: a datagram has only that of the last
/// heartbeat. But shared memory does not show the loss of a node or of its link, which mpirun notices after a
/// quarter of an hour, and nothing else could name its ranks.
/// Datagrams are UDP over IPv4: without connections, without blocking, and the next one replaces a lost one.
/// A node sends one per 12 of its ranks to each other node. If a firewall drops them, a node is never heard,
/// which implies nothing.
class RankStatusTable {
 public:
  /// The end of a job after a hang: one process per node reports, the others wait for it.
  enum class JobEnd : std::uint32_t { none, being_reported, reported };
  struct alignas(128) Header {
    static constexpr std::uint64_t right_magic = 0x6c6f636b73746570;  // "lockstep"

    std::uint64_t magic = right_magic;
    std::uint32_t ranks = 0;
    std::atomic<JobEnd> job_end{JobEnd::none};
  };
  struct alignas(128) Row : progress::RankStatus {
    std::atomic<bool> death_reported{false};  ///< known on the node of the rank only
  };

  /// Collective; returns when all rows of this node are published. Throws the same error on all ranks if
  /// there is no memory.
  explicit RankStatusTable(comm::HostGroup& world);

  int ranks() const { return static_cast<int>(node_of_rank_.size()); }
  Row& operator[](int rank) const {
    return *std::launder(reinterpret_cast<Row*>(memory_.get() + sizeof(Header)) + rank);
  }
  std::atomic<JobEnd>& job_end() const {
    return std::launder(reinterpret_cast<Header*>(memory_.get()))->job_end;
  }
  /// The ranks of this node. The first one receives for all.
  const std::vector<int>& local_ranks() const { return local_ranks_; }
  bool is_local(int rank) const { return node_of_rank_[static_cast<std::size_t>(rank)] == node_; }

  /// Sends the rows of this node to all other nodes. Any rank of the node can do it. job_ends: this node ends
  /// the job, and has reported why.
  void send(bool job_ends = false) const;
  /// Reads arrived datagrams. Does nothing on ranks that do not receive.
  void receive();
  /// Whether a datagram has ever arrived from this node; true for the own node. On the receiving rank.
  bool has_heard(int node) const { return node == node_ || newest_ns_[static_cast<std::size_t>(node)] != 0; }

 private:
  struct Descriptor {
    int number = -1;
    Descriptor() = default;
    ~Descriptor();
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
  };
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* memory) const;
  };
  struct Publication {
    Publication() = default;
    ~Publication() { progress::publish_in(nullptr); }
    Publication(const Publication&) = delete;
    Publication& operator=(const Publication&) = delete;
  };
  struct Message;

  void share_memory(comm::HostGroup& world);
  void map(const std::string& name, bool create);
  void find_peers(comm::HostGroup& world);

  std::vector<int> node_of_rank_, local_ranks_;
  int node_;
  Descriptor file_;  // stays open: the fault tests read the table through /proc
  std::unique_ptr<std::byte, Unmap> memory_;
  Publication publication_;
  Descriptor socket_;  // none if there is one node
  std::uint64_t job_ = 0;
  std::vector<sockaddr_in> peers_;       // every address of the rank of each other node that receives
  std::vector<std::int64_t> newest_ns_;  // of each node, when its newest message was sent; 0: none has come
};

}  // namespace lockstep::train
