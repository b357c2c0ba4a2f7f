// Standard streams that cannot do harm: closed ones, full ones, and ones that nobody reads.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

/// Once, before anything is opened: standard descriptors that are closed lead to /dev/null, so that no file
/// of ours gets their numbers; writing to a pipe without a reader, or beyond the limit of a file's size, is
/// an error in place of the end of the process.
void settle_standard_streams();

/// Writes to standard error. Where that takes no more (a stopped terminal, a full pipe), waits up to `wait_s`
/// for it, and drops the rest. False if anything was dropped. Any thread.
bool write_standard_error(std::string_view text, double wait_s = 0) noexcept;

/// Why texts were dropped, the first time; empty: none was.
std::string standard_error_trouble();

}  // namespace lockstep
