// Private to the verb: what the run of a configuration would need of a machine, and whether it could start.
#pragma once

#include "cli/doctor/finding.h"
#include "train/config.h"

namespace lockstep::cli::checkup {

Needs needs_of(const train::Config& config, const comm::HostGroup& world);

/// The files of data, opened as the run would.
Finding data(const train::Config& config);
/// Whether this processor computes fast in bf16, and what becomes of the run if not; `config` may be none.
Finding precision(const train::Config* config);
/// Whether this machine has what the run is to compute on.
Finding device(const train::Config& config);
/// Whether so many ranks can share the work.
Finding shards(const train::Config& config, const comm::HostGroup& world);

}  // namespace lockstep::cli::checkup
