// The subjects of lockstep bench that have a file of their own.
#pragma once

#include "cli/verb.h"

namespace lockstep::cli {

ExitCode bench_checkpoint(Session& session, const Arguments& arguments);

}  // namespace lockstep::cli
