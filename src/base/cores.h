// The processor: which cores this process may use, its instruction set, and what the language has no word
// for.
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
/// Of such a text; what is not like that is left out.
CoreSet cores_in(const std::string& text);
CoreSet united(const std::vector<CoreSet>& sets);
/// Whether the two have one in common.
bool overlap(const CoreSet& a, const CoreSet& b);

/// What the calling thread may run on: its affinity mask. Empty if the system does not tell.
CoreSet own_cores();
/// What this process was given: own_cores() of the thread that asked first, before it bound any.
const CoreSet& given_cores();
/// Lets the calling thread, and those that it starts, run on these alone. False if the system refuses.
bool bind_thread(const CoreSet& hardware_threads);
/// Whether bind_thread() has bound a thread of this process.
bool threads_bound();
/// The physical cores of these hardware threads, each as the lowest number among its threads. Where /sys does
/// not tell, every hardware thread is a core.
CoreSet physical_cores(const CoreSet& hardware_threads);
/// These hardware threads, those of a physical core together: the cores of a socket one after the other,
/// whatever their numbers.
std::vector<CoreSet> core_by_core(const CoreSet& hardware_threads);
/// Hardware threads of the machine that are switched on.
int machine_cores();

/// Flushes denormals to zero on the calling thread (FTZ and DAZ). Every computing thread calls it once:
/// a GPT initialised at N(0, 1) runs more than ten times slower without.
void flush_denormals() noexcept;

/// "sse4", "avx2", "avx512" or "avx512_bf16": the instruction set that decides the bits of matrix products on
/// this machine.
std::string instruction_set();

/// Cores this process was given (its affinity mask at first, not the machine's count).
int available_cores();

/// memcpy to memory that nobody reads soon: it displaces nothing in the caches, and does not read first what
/// it overwrites, which saves a third of the traffic. (The C library does so only from tens of MiB on.)
void copy_past_caches(void* to, const void* from, std::size_t bytes) noexcept;

}  // namespace lockstep
