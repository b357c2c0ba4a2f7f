// The subjects of lockstep bench that have a file of their own.
#pragma once

#include "cli/verb.h"

namespace lockstep::cli {

ExitCode bench_checkpoint(Session& session, const Arguments& arguments);
/// Prints what a step of the workload is made of on rank 0; as one JSON document or as a table.
void print_profile(Session& session, const std::string& workload, std::int64_t steps, bool json,
                   DType compute);

}  // namespace lockstep::cli
