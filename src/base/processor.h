// What the processor is, and what it can do that the language has no word for.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep {

/// Flushes denormals to zero on the calling thread (FTZ and DAZ). Every computing thread calls it once:
/// a GPT initialised at N(0, 1) runs more than ten times slower without.
void flush_denormals() noexcept;

/// "sse4", "avx2", "avx512" or "avx512_bf16": the instruction set that decides the bits of matrix products on
/// this machine.
std::string instruction_set();

/// Cores this process was given (its affinity mask at first, not the machine's count).
int available_cores();

/// memcpy to memory that nobody reads soon: it displaces nothing in the caches, and does not read first what
/// it overwrites, which saves a third of the traffic. (The C library does so only from tens of MiB on.)
void copy_past_caches(void* to, const void* from, std::size_t bytes) noexcept;

}  // namespace lockstep
