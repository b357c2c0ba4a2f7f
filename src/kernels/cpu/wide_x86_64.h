// Loops for the widest vectors of this processor. CMake copies the file of the architecture to wide.h.
#pragma once

namespace lockstep::kernels {

template <class Body>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl"), gnu::flatten, gnu::noinline]] void run_with_avx512(
    const Body& body) {
  body();
}

/// body(), with everything it calls inlined into it, for the widest vectors of this processor.
template <class Body>
void run_wide(const Body& body) {
  static const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx512) {
    run_with_avx512(body);
  } else {
    body();
  }
}

}  // namespace lockstep::kernels
