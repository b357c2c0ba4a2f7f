// Clocks: one monotonic clock for spans, one wall clock for stamps; the median of what they measure.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <string>
#include <vector>

namespace lockstep {

/// Seconds on a monotonic clock, the same for all processes of one node.
inline double monotonic_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Measures spans in milliseconds on the monotonic clock.
class Stopwatch {
 public:
  double elapsed_ms() const { return (monotonic_s() - start_s_) * 1e3; }
  void restart() { start_s_ = monotonic_s(); }

 private:
  double start_s_ = monotonic_s();
};

/// Wall-clock time in UTC: "2026-11-21T04:00:47Z".
inline std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", ::gmtime_r(&now, &utc))};
}

/// The median of at least one value; of an even number the upper of the two in the middle.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace lockstep
