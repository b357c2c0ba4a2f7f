#include "base/cores.h"

#include <emmintrin.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <compare>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>

namespace lockstep {
namespace {

std::atomic<bool> any_bound = false;

/// Where a hardware thread is. Sorts by socket.
struct Place {
  int socket = 0, core = 0;
  auto operator<=>(const Place&) const = default;
};

/// What /sys says about where a hardware thread is; empty if it does not.
CoreSet read_topology(int hardware_thread, const char* name) {
  std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu{}/topology/{}", hardware_thread, name));
  std::string text;
  std::getline(file, text);
  return cores_in(text);
}

/// Reads about each core once in a process: a large machine has hundreds of files.
Place place_of(int hardware_thread) {
  static std::mutex mutex;
  static std::map<int, Place> known;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(hardware_thread); found != known.end()) return found->second;
  CoreSet siblings = read_topology(hardware_thread, "thread_siblings_list");
  siblings.insert(hardware_thread);
  const CoreSet sockets = read_topology(hardware_thread, "physical_package_id");
  const Place place{.socket = sockets.empty() ? 0 : *sockets.begin(), .core = *siblings.begin()};
  for (const int sibling : siblings) known[sibling] = place;
  return place;
}

}  // namespace

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

CoreSet united(const std::vector<CoreSet>& sets) {
  CoreSet all;
  for (const CoreSet& set : sets) all.insert(set.begin(), set.end());
  return all;
}

bool overlap(const CoreSet& a, const CoreSet& b) {
  return std::ranges::any_of(a, [&](int core) { return b.contains(core); });
}

CoreSet own_cores() {
  constexpr std::size_t most = 64;  // a kernel wants space for all hardware threads that it could have
  CoreSet cores;
  for (std::size_t parts = 1; parts <= most; parts *= 2) {
    std::vector<cpu_set_t> mask(parts);
    const std::size_t bytes = parts * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, mask.data()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    for (std::size_t core = 0; core < parts * CPU_SETSIZE; ++core) {
      if (CPU_ISSET_S(core, bytes, mask.data())) cores.insert(static_cast<int>(core));
    }
    break;
  }
  return cores;
}

const CoreSet& given_cores() {
  static const CoreSet given = own_cores();
  return given;
}

bool bind_thread(const CoreSet& hardware_threads) {
  if (hardware_threads.empty()) return false;
  given_cores();  // as it was before
  std::vector<cpu_set_t> mask(static_cast<std::size_t>(*hardware_threads.rbegin()) / CPU_SETSIZE + 1);
  const std::size_t bytes = mask.size() * sizeof(cpu_set_t);
  for (const int thread : hardware_threads) CPU_SET_S(static_cast<std::size_t>(thread), bytes, mask.data());
  if (sched_setaffinity(0, bytes, mask.data()) != 0) return false;
  any_bound = true;
  return true;
}

bool threads_bound() { return any_bound; }

CoreSet physical_cores(const CoreSet& hardware_threads) {
  CoreSet physical;
  for (const int thread : hardware_threads) physical.insert(place_of(thread).core);
  return physical;
}

std::vector<CoreSet> core_by_core(const CoreSet& hardware_threads) {
  std::map<Place, CoreSet> found;
  for (const int thread : hardware_threads) found[place_of(thread)].insert(thread);
  std::vector<CoreSet> cores;
  for (const auto& [place, threads] : found) cores.push_back(threads);
  return cores;
}

int machine_cores() { return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)); }

void flush_denormals() noexcept {
  constexpr unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040;
  _mm_setcsr(_mm_getcsr() | flush_to_zero | denormals_are_zero);
}

std::string instruction_set() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
    return __builtin_cpu_supports("avx512bf16") ? "avx512_bf16" : "avx512";
  }
  return __builtin_cpu_supports("avx2") ? "avx2" : "sse4";
}

int available_cores() { return std::max(1, static_cast<int>(given_cores().size())); }

void copy_past_caches(void* to, const void* from, std::size_t bytes) noexcept {
  constexpr std::size_t line_bytes = 64;
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const std::size_t to_line = -reinterpret_cast<std::uintptr_t>(target) % line_bytes;
  const std::size_t head = std::min(to_line, bytes);
  std::memcpy(target, source, head);
  target += head, source += head, bytes -= head;
  for (; bytes >= line_bytes; target += line_bytes, source += line_bytes, bytes -= line_bytes) {
    __m128i line[4];
    std::memcpy(line, source, sizeof line);
    for (int quarter = 0; quarter < 4; ++quarter)
      _mm_stream_si128(reinterpret_cast<__m128i*>(target) + quarter, line[quarter]);
  }
  std::memcpy(target, source, bytes);
  _mm_sfence();  // makes the stores visible before anything that follows
}

}  // namespace lockstep
