// Clocks: one monotonic clock for spans, one wall clock for stamps.
#pragma once

#include <chrono>
#include <string>

namespace lockstep {

/// Seconds on a monotonic clock, the same for all processes of one machine.
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
std::string utc_now();

}  // namespace lockstep
