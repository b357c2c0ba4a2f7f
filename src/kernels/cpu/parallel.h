// Loops over the backend's threads. A loop is cut into equal runs of whole items, so which thread computes an
// item never changes how it is computed.
#pragma once

#include <omp.h>
#include <algorithm>
#include <cstdint>
#include <exception>

#include "base/processor.h"
#include "kernels/cpu/wide.h"

namespace lockstep::kernels {

/// Calls body(begin, end) for disjoint runs that cover [0, count); inline if `threads` is 1 or a second
/// thread would have less than `items_per_thread` work. An exception of a body is thrown again here (the
/// first of several).
template <class Body>
void parallel_ranges(int threads, std::int64_t count, std::int64_t items_per_thread, const Body& body) {
  const std::int64_t useful = items_per_thread < 1 ? count : count / items_per_thread;
  const int team = static_cast<int>(std::min<std::int64_t>(threads, useful));
  if (team <= 1) {
    if (count > 0) run_wide([&] { body(std::int64_t{0}, count); });
    return;
  }
  std::exception_ptr error;
  // Not `parallel for`, in which LLVM's OpenMP allocates every time. Always all threads: GNU's OpenMP ends
  // the threads that a smaller team does not use, and starts new ones for the next team.
#pragma omp parallel num_threads(threads)
  for (int part = omp_get_thread_num(); part < team; part += omp_get_num_threads()) {
    flush_denormals();
    try {
      run_wide([&] { body(count * part / team, count * (part + 1) / team); });
    } catch (...) {
#pragma omp critical(lockstep_kernels_error)
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

/// Calls body(item) for every item of [0, count).
template <class Body>
void parallel_items(int threads, std::int64_t count, std::int64_t items_per_thread, const Body& body) {
  parallel_ranges(threads, count, items_per_thread, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) body(item);
  });
}

}  // namespace lockstep::kernels
