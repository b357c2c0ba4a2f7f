// Failures of the system's file calls as errors with a path, a reason and an exit code.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

/// Throws "PATH: cannot ACTION: REASON": DataError if the storage is full or read-only (ENOSPC, EDQUOT,
/// EROFS), has no such file or has one already, UsageError if it is not for us to use (permissions, loops of
/// links, something that is no directory on the way), FailureError otherwise.
[[noreturn]] void throw_system_error(int error, const std::string& path, std::string_view action);

}  // namespace lockstep
