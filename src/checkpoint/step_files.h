// Private to the room: files named after a step, step-000000500.h5, in directories of a run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

std::string name_of_step(std::int64_t step);
/// Of a name of such a file; -1 of any other.
std::int64_t step_in_name(std::string_view name);

/// Steps that have a file, newest first; none if there is no such directory.
std::vector<std::int64_t> steps_in(const std::string& directory);
/// The same on every rank, as rank 0 sees it. Collective.
std::vector<std::int64_t> steps_in(const std::string& directory, comm::Communicator& communicator);

/// Removes what a save that was cut off left behind, and says so.
void remove_drafts(const std::string& directory, const Log& log);

}  // namespace lockstep::checkpoint
