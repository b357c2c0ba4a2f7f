// Private to the verb: what the run of a configuration would need of a machine.
#pragma once

#include "cli/doctor/finding.h"
#include "lockstep/train/config.h"

namespace lockstep::cli::checkup {

Needs needs_of(const train::Config& config, const comm::Communicator& world);

}  // namespace lockstep::cli::checkup
