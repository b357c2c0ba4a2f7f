// Safe use of the standard streams, which may be closed, full, or a pipe without a reader.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

/// Call once, before anything is opened. Opens /dev/null in place of closed standard descriptors, so that no
/// file gets their numbers, and ignores SIGPIPE and SIGXFSZ, so that such writes are errors.
void protect_standard_streams();

/// Writes to standard error. If it is full (a stopped terminal, a full pipe), waits up to `wait_s`, and drops
/// the rest. False if anything was dropped. Any thread.
bool write_standard_error(std::string_view text, double wait_s = 0) noexcept;

/// Why a text was dropped for the first time; empty: never.
std::string standard_error_trouble();

}  // namespace lockstep
