#include "lockstep/base/processor.h"

#include <sched.h>
#include <xmmintrin.h>

#include <algorithm>

namespace lockstep {

void flush_denormals() noexcept {
  constexpr unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040;
  _mm_setcsr(_mm_getcsr() | flush_to_zero | denormals_are_zero);
}

std::string instruction_set() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
    return __builtin_cpu_supports("avx512bf16") ? "avx512_bf16" : "avx512";
  }
  return __builtin_cpu_supports("avx2") ? "avx2" : "sse4";
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

}  // namespace lockstep
