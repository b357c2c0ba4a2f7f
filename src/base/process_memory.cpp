#include "lockstep/base/process_memory.h"

#include <sys/resource.h>

namespace lockstep {

ProcessMemory process_memory() noexcept {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);  // cannot fail with these arguments
  constexpr std::int64_t unit_bytes = 1024;
  return {.peak_bytes = usage.ru_maxrss * unit_bytes, .page_faults = usage.ru_minflt + usage.ru_majflt};
}

}  // namespace lockstep
