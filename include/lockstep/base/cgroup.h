// What the control group of this process (a container, a Slurm step) leaves it.
#pragma once

#include <cstdint>
#include <optional>

namespace lockstep {

/// Cores' worth of time; none if there is no quota.
std::optional<double> cgroup_cores();
/// Bytes of memory, /dev/shm included; none if there is no limit.
std::optional<std::uint64_t> cgroup_memory();

}  // namespace lockstep
