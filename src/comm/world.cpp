// The process's MPI state: whether it was launched as a rank, and starting and ending MPI.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>

#include "comm/mpi_check.h"
#include "comm/mpi_communicator.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {
namespace {

/// A launcher that wires ranks up leaves one of these. SLURM_PROCID is not among them: Slurm sets it in a
/// batch script's own shell too, where nothing was launched.
bool launched_as_rank() {
  constexpr std::array names = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK",   "PMI_RANK",
                                "MV2_COMM_WORLD_SIZE",  "PALS_RANKID", "MPI_LOCALNRANKS"};
  return std::any_of(names.begin(), names.end(),
                     [](const char* name) { return std::getenv(name) != nullptr; });
}

}  // namespace

World::World(int& argc, char**& argv) {
  int initialised = 0;
  check_mpi(MPI_Initialized(&initialised), "MPI_Initialized", -1);
  if (!initialised) {
    if (!launched_as_rank()) {
      communicator_ = make_self_communicator();
      return;
    }
    int provided = 0;
    check_mpi(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread", -1);
    owns_mpi_ = true;
    if (provided < MPI_THREAD_FUNNELED) {
      throw FailureError(
          "MPI_Init_thread: this MPI does not allow a program with threads; install one that does");
    }
  }
  communicator_ = make_mpi_communicator(MPI_COMM_WORLD);
}

World::~World() {
  // While an exception unwinds, the peers may be elsewhere: everything collective would wait for them. The
  // caller aborts.
  const bool unwinding = std::uncaught_exceptions() > 0;
  communicator_.reset();
  if (owns_mpi_ && !unwinding) MPI_Finalize();
}

}  // namespace lockstep::comm
