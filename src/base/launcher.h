// What launchers of MPI programs tell a rank in its environment, before MPI starts. OMPI_: Open MPI's mpirun;
// PMIX_: also srun --mpi=pmix; PMI_ and MPI_: Hydra (MPICH, Intel MPI, MVAPICH), and PMI_ also srun
// --mpi=pmi2; MV2_: MVAPICH 2; PALS_: HPE Cray; SLURM_: any srun. -1: unknown.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <system_error>

namespace lockstep::launcher {

/// The first of these variables that is set, as a number.
inline int number(std::initializer_list<const char*> variables) {
  for (const char* const variable : variables) {
    int value = 0;
    if (const char* const text = std::getenv(variable);
        text && std::from_chars(text, text + std::strlen(text), value).ec == std::errc())
      return value;
  }
  return -1;
}

/// The rank. It ignores Slurm's own variable, as Slurm also sets it in the shell of a batch script.
inline int rank() {
  return number({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID"});
}
/// How many ranks the launcher of an MPI has started: the maximum if one launcher started another.
inline int size() {
  return std::max({number({"OMPI_COMM_WORLD_SIZE"}), number({"PMI_SIZE"}), number({"MV2_COMM_WORLD_SIZE"})});
}
inline int ranks_of_this_node() { return number({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}); }
inline int srun_tasks() { return number({"SLURM_STEP_NUM_TASKS"}); }

}  // namespace lockstep::launcher
