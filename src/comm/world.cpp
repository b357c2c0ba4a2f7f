// The process's MPI state: whether it was launched as a rank, and starting and ending MPI.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>

#include "comm/mpi_check.h"
#include "comm/mpi_communicator.h"
#include "lockstep/base/whereabouts.h"
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

/// Started by one MPI's launcher but linked against another, each process takes itself for a whole world, and
/// N copies of one run write over each other.
void check_launcher_matches(int size) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* launched = std::getenv(name);
    if (launched && size == 1 && std::atoi(launched) > 1) {
      throw UsageError(
          "world: the launcher started {} ranks ({}), but MPI sees only this one: the launcher belongs to "
          "another MPI than the program; start it with that MPI's own mpirun, or with srun --mpi=pmix",
          launched, name);
    }
  }
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
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", -1);
  int size = 1;
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size", -1);
  if (owns_mpi_) check_launcher_matches(size);
  communicator_ = make_mpi_communicator(MPI_COMM_WORLD);
}

World::~World() {
  // While an exception unwinds, the peers may be elsewhere: everything collective would wait for them. The
  // caller aborts.
  const bool unwinding = std::uncaught_exceptions() > 0;
  const whereabouts::Waiting waiting;
  communicator_.reset();
  if (owns_mpi_ && !unwinding) MPI_Finalize();
}

}  // namespace lockstep::comm
