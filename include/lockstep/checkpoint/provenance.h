// Provenance: which build, machine and job wrote a file.
#pragma once

#include "lockstep/checkpoint/contents.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

/// What this build and its surroundings are: version, git, compiler, build_type, libraries, instruction_set,
/// hosts, and under Slurm slurm_job_id, slurm_restart_count, slurm_cluster. Not collective.
Provenance provenance_of(const comm::Communicator& communicator);

}  // namespace lockstep::checkpoint
