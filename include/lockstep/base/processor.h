// What the processor is, and the state of it that a thread must set before computing.
#pragma once

#include <string>

namespace lockstep {

/// Flushes denormals to zero on the calling thread (FTZ and DAZ). Every computing thread calls it once:
/// a GPT initialised at N(0, 1) runs more than ten times slower without.
void flush_denormals() noexcept;

/// "sse4", "avx2", "avx512" or "avx512_bf16": the instruction set that decides the bits of matrix products on
/// this machine.
std::string instruction_set();

/// Cores this process may run on (its affinity mask, not the machine's count).
int available_cores();

}  // namespace lockstep
