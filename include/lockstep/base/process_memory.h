// What this process has asked of the machine's memory so far, and what there is to ask for.
#pragma once

#include <cstdint>
#include <optional>

namespace lockstep {

struct ProcessMemory {
  std::int64_t peak_bytes = 0;   ///< most that was resident at once
  std::int64_t page_faults = 0;  ///< pages that were given to it on first use, or again
};

ProcessMemory process_memory() noexcept;

/// The smaller of what this machine can still give (MemAvailable) and the limit of this process's control
/// group. None where neither is known.
std::optional<std::uint64_t> available_memory_bytes();

}  // namespace lockstep
