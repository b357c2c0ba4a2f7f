// The processor: which cores this process may use and binds threads to (through hwloc), its instruction set,
// and operations that C++ does not have.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

namespace lockstep {

/// Hardware threads, by the kernel's numbers.
using CoreSet = std::set<int>;

/// "0-3,8"
std::string to_text(const CoreSet& cores);
/// Reads what to_text() writes; empty if it is malformed.
CoreSet cores_in(const std::string& text);
CoreSet united(const std::vector<CoreSet>& sets);
/// Whether the two have one in common.
bool overlap(const CoreSet& a, const CoreSet& b);

/// The affinity mask of the calling thread. Empty if the system does not report it.
CoreSet own_cores();
/// The affinity mask of this process: own_cores() of the first caller, before any thread was bound.
const CoreSet& given_cores();
/// Binds the calling thread, and those that it starts, to these. False if the system refuses.
bool bind_thread(const CoreSet& hardware_threads);
/// Whether bind_thread() has bound a thread of this process.
bool threads_bound();
/// The physical cores of these hardware threads, each as the lowest number among its threads. Where the
/// system does not report cores, every hardware thread is one.
CoreSet physical_cores(const CoreSet& hardware_threads);
/// These hardware threads grouped by physical core, the cores of a socket one after the other, whatever their
/// numbers.
std::vector<CoreSet> core_by_core(const CoreSet& hardware_threads);
/// Hardware threads of the node that are online.
int machine_cores();

/// Flushes denormals to zero on the calling thread (FTZ and DAZ). Every computing thread calls it once:
/// a GPT initialised at N(0, 1) runs more than ten times slower without.
void flush_denormals() noexcept;

/// "sse4", "avx2", "avx512" or "avx512_bf16": the instruction set that decides the bits of matrix products on
/// this node.
std::string instruction_set();

/// The number of given_cores(), at least 1.
int available_cores();

/// memcpy to memory that is not read soon: it bypasses the caches and does not first read what it overwrites,
/// which saves a third of the traffic. (The C library does so only from tens of MiB on.)
void copy_past_caches(void* to, const void* from, std::size_t bytes) noexcept;

}  // namespace lockstep
