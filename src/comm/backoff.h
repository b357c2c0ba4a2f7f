// Backoff: a waiting rank spins first and yields its core later.
#pragma once

#include <sched.h>

#include "base/clock.h"

namespace lockstep::comm {

/// Peers are usually microseconds behind, so a rank spins at first: a yield would give the core to another
/// process for milliseconds. Later it yields at every pause, as its peer may need this core. On an
/// oversubscribed node, with more ranks than cores, it yields from the start (sums of 64 KiB on 2 cores: 31
/// us became 11 at 3 ranks, 37 became 18 at 4, 92 became 67 at 8).
class Backoff {
 public:
  explicit Backoff(bool oversubscribed) : yielding_(oversubscribed) {}

  void pause() {
    if (!yielding_) yielding_ = monotonic_s() > start_s_ + spin_s;
    if (yielding_) sched_yield();
  }
  /// The wait is long enough for more work at each pause.
  bool yielding() const { return yielding_; }

 private:
  static constexpr double spin_s = 10e-6;
  double start_s_ = monotonic_s();
  bool yielding_;
};

}  // namespace lockstep::comm
