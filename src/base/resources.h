// Resources of this process: its memory use, and the limits of the node and of its control group (a
// container, a Slurm step).
#pragma once

#include <cstdint>
#include <optional>

namespace lockstep {

struct ProcessMemory {
  std::int64_t peak_bytes = 0;   ///< largest resident size so far
  std::int64_t page_faults = 0;  ///< minor and major ones
};

ProcessMemory process_memory() noexcept;

/// Bytes that this process has read by system calls, from storage or the system's memory; 0: not known.
std::uint64_t read_bytes_of_process();

/// The smaller of the node's MemAvailable and the limit of this process's control group; none if neither is
/// known.
std::optional<std::uint64_t> available_memory_bytes();

/// The smaller of the node's MemTotal and that limit; 0 if neither is known.
std::uint64_t node_memory_bytes();

/// The control group's quota of processor time, in cores; none without a quota.
std::optional<double> cgroup_cores();
/// The control group's memory limit in bytes, /dev/shm included; none without a limit.
std::optional<std::uint64_t> cgroup_memory();

}  // namespace lockstep
