// The MPI transport: shared memory within a node, messages between nodes.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

/// Sizes that tests make small to reach the paths of large messages.
struct MpiLimits {
  std::size_t message_bytes = std::size_t{1}
                              << 30;  ///< largest single message of a collective; counts are ints in MPI
  std::size_t piece_bytes = std::size_t{1}
                            << 20;  ///< a tree sum travels between nodes in pieces of this size
};

/// A communicator over a copy of `parent`. Collective over it.
std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, const MpiLimits& limits = {});

/// As above, with the nodes given by rank instead of found. Ranks of one node must be able to share memory;
/// ranks of different nodes may.
std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, const std::vector<int>& node_of_rank,
                                                    const MpiLimits& limits = {});

}  // namespace lockstep::comm
