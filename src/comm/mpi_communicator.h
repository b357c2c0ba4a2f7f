// The group and the transport over MPI: shared memory within a node, messages between nodes.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

/// Tests make these sizes small to reach the code for large messages.
struct MpiLimits {
  /// Largest single message of a collective; counts are ints in MPI.
  std::size_t message_bytes = std::size_t{1} << 30;
  /// The size of messages between nodes: the most that Open MPI sends over TCP eagerly. Larger ones need a
  /// reply first, which queues behind the data of the other direction. Ten sums of 8 MiB between two nodes,
  /// 1 gbit/s each way, with a 50 ms queue (671 ms for the bytes): 735 ms like this, 1187 ms in chunks of
  /// 1 MiB.
  std::size_t chunk_bytes = std::size_t{60} << 10;
};

/// A communicator over a copy of `parent`. Collective over it.
std::unique_ptr<CpuCommunicator> make_mpi_communicator(MPI_Comm parent, const MpiLimits& limits = {});

/// As above, with the node of each rank given. Ranks of one node must be able to share memory;
/// ranks of different nodes may.
std::unique_ptr<CpuCommunicator> make_mpi_communicator(MPI_Comm parent, const std::vector<int>& node_of_rank,
                                                       const MpiLimits& limits = {});

}  // namespace lockstep::comm
