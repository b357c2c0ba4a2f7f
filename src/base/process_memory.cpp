#include "lockstep/base/process_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "lockstep/base/cgroup.h"

namespace lockstep {

ProcessMemory process_memory() noexcept {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);  // cannot fail with these arguments
  constexpr std::int64_t unit_bytes = 1024;
  return {.peak_bytes = usage.ru_maxrss * unit_bytes, .page_faults = usage.ru_minflt + usage.ru_majflt};
}

std::optional<std::uint64_t> available_memory_bytes() {
  constexpr std::uint64_t unit_bytes = 1024;
  std::optional<std::uint64_t> least = cgroup_memory();
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    std::uint64_t kib = 0;
    if (name == "MemAvailable:" && file >> kib)
      least = std::min(least.value_or(kib * unit_bytes), kib * unit_bytes);
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return least;
}

}  // namespace lockstep
