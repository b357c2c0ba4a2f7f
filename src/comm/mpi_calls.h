// MPI: its name and version, error codes as exceptions, owned communicators, and the group and the transport
// over it (shared memory within a node, messages between nodes).
#pragma once

#include <mpi.h>
#include <array>
#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

/// The MPI of this build: its value of srun --mpi=, and flags of its mpirun.
#ifdef OPEN_MPI
constexpr std::string_view own_pmi = "pmix", bind_flags = "--map-by slot:PE=THREADS --bind-to core",
                           fill_nodes_flags = "--map-by core";
#else
constexpr std::string_view own_pmi = "pmi2", bind_flags = "-bind-to core:THREADS",
                           fill_nodes_flags = "-ppn RANKS_OF_A_NODE";
#endif

/// The version text of the MPI library, in one line; its name and version, such as "Open MPI v4.1.4" or
/// "MPICH 4.0.2".
std::string mpi_description();
std::string mpi_library();

/// Throws FailureError with the call's name, MPI's own text and the rank unless `code` is MPI_SUCCESS.
inline void check_mpi(int code, const char* call, int rank) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  throw FailureError(
      "{} failed on rank {}: {}", call, rank,
      length > 0 ? std::string(text.data(), static_cast<std::size_t>(length)) : fmt::format("code {}", code));
}

/// An MPI communicator that returns error codes and is freed with this object.
class OwnedComm {
 public:
  explicit OwnedComm(MPI_Comm comm) : comm_(comm) { MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN); }
  ~OwnedComm() {
    // Collective, so not while an exception unwinds: the peers may be elsewhere.
    if (std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
  }
  OwnedComm(const OwnedComm&) = delete;
  OwnedComm& operator=(const OwnedComm&) = delete;
  MPI_Comm get() const { return comm_; }

 private:
  MPI_Comm comm_;
};

/// Tests make these sizes small to reach the code for large messages.
struct MpiLimits {
  /// Largest single message of a collective; counts are ints in MPI.
  std::size_t message_bytes = std::size_t{1} << 30;
  /// The size of messages between nodes: the maximum that Open MPI sends eagerly over TCP. Larger ones need a
  /// reply first, which queues behind the data of the other direction. Ten sums of 8 MiB between two nodes, 1
  /// gbit/s each way, with a 50 ms queue (671 ms for the bytes): 735 ms with this size, 1187 ms in chunks of
  /// 1 MiB.
  std::size_t chunk_bytes = std::size_t{60} << 10;
};

/// A communicator over a copy of `parent`. Collective over it.
std::unique_ptr<CpuCommunicator> make_mpi_communicator(MPI_Comm parent, const MpiLimits& limits = {});

/// The same, with the node of each rank as an argument. Ranks of one node must be able to share memory; ranks
/// of different nodes may.
std::unique_ptr<CpuCommunicator> make_mpi_communicator(MPI_Comm parent, const std::vector<int>& node_of_rank,
                                                       const MpiLimits& limits = {});

}  // namespace lockstep::comm
