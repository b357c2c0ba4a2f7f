// Resources of this process: the memory that it has used, and what the node and its control group (a
// container, a Slurm step) leave it.
#pragma once

#include <cstdint>
#include <optional>

namespace lockstep {

struct ProcessMemory {
  std::int64_t peak_bytes = 0;   ///< most that was resident at once
  std::int64_t page_faults = 0;  ///< pages that were given to it on first use, or again
};

ProcessMemory process_memory() noexcept;

/// The smaller of what this node can still give (MemAvailable) and the limit of this process's control
/// group. None where neither is known.
std::optional<std::uint64_t> available_memory_bytes();

/// Processor time that the control group grants, in cores; none if there is no quota.
std::optional<double> cgroup_cores();
/// The control group's limit in bytes, /dev/shm included; none if there is no limit.
std::optional<std::uint64_t> cgroup_memory();

}  // namespace lockstep
