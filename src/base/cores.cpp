#include "lockstep/base/cores.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>

namespace lockstep {

std::string to_text(const CoreSet& cores) {
  std::string text;
  for (auto first = cores.begin(); first != cores.end();) {
    auto last = first;
    while (std::next(last) != cores.end() && *std::next(last) == *last + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", *first);
    if (last != first) text += fmt::format("-{}", *last);
    first = std::next(last);
  }
  return text;
}

CoreSet cores_in(const std::string& text) {
  CoreSet cores;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    int first = 0, last = 0;
    const int read = std::sscanf(text.substr(at, comma - at).c_str(), "%d-%d", &first, &last);
    if (read >= 1) {
      for (int core = first; core <= (read == 2 ? last : first); ++core) cores.insert(core);
    }
    at = comma + 1;
  }
  return cores;
}

CoreSet own_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CoreSet cores;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &mask)) cores.insert(core);
  }
  return cores;
}

CoreSet physical_cores(const CoreSet& hardware_threads) {
  CoreSet physical;
  for (const int thread : hardware_threads) {
    std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", thread));
    std::string text;
    std::getline(file, text);
    const CoreSet siblings = cores_in(text);
    physical.insert(siblings.empty() ? thread : *siblings.begin());
  }
  return physical;
}

int machine_cores() { return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)); }

}  // namespace lockstep
