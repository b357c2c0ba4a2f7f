// Machine code as a library generates it, with nothing that tells how to unwind its frame. A file per
// architecture.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::test {

/// void f(int* runs, const int* stop): sets *runs to 1, and returns once *stop is not 0. It has a frame on
/// the stack and no frame pointer.
std::span<const std::uint8_t> waiting_code();

}  // namespace lockstep::test
