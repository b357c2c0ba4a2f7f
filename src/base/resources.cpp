#include "base/resources.h"

#include <sys/resource.h>
#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace lockstep {
namespace {

/// Directories of the process's control group and its parents, for a controller of version 1, or "" for
/// version 2.
std::vector<std::string> directories(const std::string& controller) {
  std::ifstream groups("/proc/self/cgroup");
  std::vector<std::string> found;
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controller.empty() ? names != ",," : names.find("," + controller + ",") == std::string::npos)
      continue;
    const std::string root =
        "/sys/fs/cgroup" + (controller.empty() ? "" : "/" + line.substr(first + 1, second - first - 1));
    std::string path = line.substr(second + 1);
    while (path.size() > 1) {
      found.push_back(root + path);
      path.erase(path.rfind('/'));
    }
    found.push_back(root);  // a container may not have the path of its group
  }
  return found;
}

std::vector<std::string> words_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> words;
  for (std::string word; file >> word;) words.push_back(word);
  return words;
}

std::optional<double> number(const std::vector<std::string>& words, std::size_t index) {
  double value = 0;
  if (index < words.size() && std::istringstream(words[index]) >> value && value > 0) return value;
  return std::nullopt;
}

template <class T>
void lower(std::optional<T>& min, T value) {
  min = min ? std::min(*min, value) : value;
}

}  // namespace

std::uint64_t read_bytes_of_process() {
  const std::vector<std::string> words = words_of("/proc/self/io");  // "rchar: 123 wchar: ..."
  return static_cast<std::uint64_t>(number(words, 1).value_or(0));
}

std::optional<double> cgroup_cores() {
  std::optional<double> min;
  for (const std::string& directory : directories("")) {
    const auto words = words_of(directory + "/cpu.max");  // "QUOTA PERIOD" or "max PERIOD"
    const auto quota = number(words, 0), period = number(words, 1);
    if (quota && period) lower(min, *quota / *period);
  }
  for (const std::string& directory : directories("cpu")) {
    const auto quota = number(words_of(directory + "/cpu.cfs_quota_us"), 0);
    const auto period = number(words_of(directory + "/cpu.cfs_period_us"), 0);
    if (quota && period) lower(min, *quota / *period);
  }
  return min;
}

std::optional<std::uint64_t> cgroup_memory() {
  constexpr double no_limit = 1e18;  // version 1 writes a number near 2^63
  std::optional<std::uint64_t> min;
  const auto look = [&](const std::string& path) {
    const auto bytes = number(words_of(path), 0);
    if (bytes && *bytes < no_limit) lower(min, static_cast<std::uint64_t>(*bytes));
  };
  for (const std::string& directory : directories("")) look(directory + "/memory.max");
  for (const std::string& directory : directories("memory")) look(directory + "/memory.limit_in_bytes");
  return min;
}

ProcessMemory process_memory() noexcept {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);  // cannot fail with these arguments
  constexpr std::int64_t unit_bytes = 1024;
  return {.peak_bytes = usage.ru_maxrss * unit_bytes, .page_faults = usage.ru_minflt + usage.ru_majflt};
}

namespace {

/// The smaller of this line of /proc/meminfo and the limit of the control group.
std::optional<std::uint64_t> memory_bytes(const std::string& line) {
  constexpr std::uint64_t unit_bytes = 1024;
  std::optional<std::uint64_t> min = cgroup_memory();
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    std::uint64_t kib = 0;
    if (name == line && file >> kib) lower(min, kib * unit_bytes);
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return min;
}

}  // namespace

std::optional<std::uint64_t> available_memory_bytes() { return memory_bytes("MemAvailable:"); }
std::uint64_t node_memory_bytes() { return memory_bytes("MemTotal:").value_or(0); }

}  // namespace lockstep
