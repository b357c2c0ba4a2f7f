// Which of a machine's cores a process may use.
#pragma once

#include <set>
#include <string>

namespace lockstep {

/// Hardware threads, by the kernel's numbers.
using CoreSet = std::set<int>;

/// "0-3,8"
std::string to_text(const CoreSet& cores);
/// Of such a text; what is not like that is left out.
CoreSet cores_in(const std::string& text);

/// What this process may run on: its affinity mask.
CoreSet own_cores();
/// The physical cores of these hardware threads, each as the lowest number among its threads. Where /sys does
/// not tell, every hardware thread is a core.
CoreSet physical_cores(const CoreSet& hardware_threads);
/// Hardware threads of the machine that are switched on.
int machine_cores();

}  // namespace lockstep
