// Compiled again whenever `git describe` changes, so it has a file to itself.
#include "lockstep/checkpoint/state_dict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>

#include "checkpoint/build_info.h"
#include "kernels/math_library.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

Provenance provenance_of(const comm::HostGroup& world) {
  Provenance provenance = {{"version", build_info::version},
                           {"git", build_info::git},
                           {"compiler", build_info::compiler},
                           {"build_type", build_info::build_type},
                           {"libraries", build_info::libraries},
                           {"instruction_set", kernels::math_library().instruction_set},
                           {"math_library", kernels::math_library().version},
                           {"hosts", fmt::format("{}", fmt::join(world.topology().host_names, " "))}};
  const auto add_from_environment = [&](const char* name, const char* variable) {
    if (const char* value = std::getenv(variable)) provenance[name] = value;
  };
  add_from_environment("slurm_job_id", "SLURM_JOB_ID");
  add_from_environment("slurm_restart_count", "SLURM_RESTART_COUNT");
  add_from_environment("slurm_cluster", "SLURM_CLUSTER_NAME");
  return provenance;
}

}  // namespace lockstep::checkpoint
