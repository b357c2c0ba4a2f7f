// Private to the module: what nodes tell each other of their ranks, beside MPI.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "train/board.h"

namespace lockstep::train {

/// Datagrams (UDP over IPv4) between all nodes: nothing to connect, nothing that blocks, and one that is lost
/// is made good by the next. Every rank can send for its node; the first of a node receives for it. Where a
/// firewall lets none through, a node is never heard of, and nothing is concluded from that.
class Heartbeat {
 public:
  /// Collective. Opens nothing where there is one node.
  Heartbeat(comm::HostGroup& world, Board& board);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// The records of this node's ranks to all other nodes.
  void send();
  /// That this node ends the job, having said why.
  void send_verdict();
  /// Takes in what has come. On the first rank of a node.
  void receive();
  /// Whether anything has ever come from this node (the own one counts as heard). On the rank that receives.
  bool heard(int node) const { return heard_[static_cast<std::size_t>(node)] != 0; }

 private:
  struct Message;
  void send(const Message& message, std::size_t bytes);

  Board& board_;
  int node_;
  std::vector<int> local_ranks_;
  std::vector<sockaddr_in> peers_;  ///< every address of every other node
  std::vector<char> heard_;         ///< by node
  std::vector<int> node_of_rank_;
  std::uint64_t job_ = 0;
  int socket_ = -1;
};

}  // namespace lockstep::train
