// Clocks: a monotonic one for durations, a wall clock for time stamps; the median of measured times.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// A monotonic clock, the same for all processes of one node.
inline std::int64_t monotonic_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}
inline double monotonic_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The CPU time of this thread, user and system.
inline double thread_cpu_ms() {
  std::timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

/// Measures durations on the monotonic clock.
class Stopwatch {
 public:
  double elapsed_ms() const { return (monotonic_s() - start_s_) * 1e3; }
  void restart() { start_s_ = monotonic_s(); }

 private:
  double start_s_ = monotonic_s();
};

/// "1:02:03".
inline std::string duration_text(double duration_s) {
  const auto whole_s = static_cast<std::int64_t>(duration_s);
  return fmt::format("{}:{:02}:{:02}", whole_s / 3600, whole_s / 60 % 60, whole_s % 60);
}

/// A wall-clock time in UTC: "2026-11-21T04:00:47Z".
inline std::string utc_text(std::time_t time) {
  std::tm utc{};
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", ::gmtime_r(&time, &utc))};
}
/// Seconds since 1970 of such a text; none for other texts.
inline std::optional<std::time_t> unix_time_of(const std::string& utc) {
  std::tm time{};
  const char* const end = ::strptime(utc.c_str(), "%Y-%m-%dT%H:%M:%SZ", &time);
  if (!end || *end != '\0') return std::nullopt;
  return ::timegm(&time);
}
inline std::string utc_now() { return utc_text(std::time(nullptr)); }

/// The median of at least one value; the upper of the two middle values if their number is even.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace lockstep
