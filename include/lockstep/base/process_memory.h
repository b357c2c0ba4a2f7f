// What this process has asked of the machine's memory so far.
#pragma once

#include <cstdint>

namespace lockstep {

struct ProcessMemory {
  std::int64_t peak_bytes = 0;   ///< most that was resident at once
  std::int64_t page_faults = 0;  ///< pages that were given to it on first use, or again
};

ProcessMemory process_memory() noexcept;

}  // namespace lockstep
