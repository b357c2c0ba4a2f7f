// Which cores this process may use and binds threads to, through hwloc.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace lockstep {

/// Hardware threads, by the numbers of the kernel.
using CoreSet = std::set<int>;

/// "0-3,8"
std::string to_text(const CoreSet& cores);
/// Reads what to_text() writes; empty if it is malformed.
CoreSet cores_in(const std::string& text);
CoreSet united(const std::vector<CoreSet>& sets);
/// Whether the two sets have a hardware thread in common.
bool overlap(const CoreSet& a, const CoreSet& b);

/// The affinity mask of the calling thread. Empty if the system does not report it.
CoreSet own_cores();
/// The affinity mask of this process: own_cores() of the first caller, before any thread was bound.
const CoreSet& process_cores();
/// Binds the calling thread, and those that it starts, to these. False if the system refuses.
bool bind_thread(const CoreSet& hardware_threads);
/// Whether bind_thread() has bound a thread of this process.
bool threads_bound();
/// The physical cores of these hardware threads, each as the lowest number among its threads. Where the
/// system does not report cores, every hardware thread is one.
CoreSet physical_cores(const CoreSet& hardware_threads);
/// These hardware threads grouped by physical core, the cores of a socket next to each other.
std::vector<CoreSet> core_by_core(const CoreSet& hardware_threads);
/// Hardware threads of the node that are online.
int machine_cores();

/// The size of process_cores(), at least 1.
int available_cores();

}  // namespace lockstep
