// What a waiting rank does between two looks.
#pragma once

#include <sched.h>

#include "base/clock.h"

namespace lockstep::comm {

/// The peers of a waiting rank are mostly microseconds behind, so at first it just looks again: a yield would
/// hand the core to any busy neighbour for whole milliseconds. After that it yields every time, as the peer
/// it waits for may need this very core. On a crowded node, where the communicator has more ranks than this
/// process may use cores, it yields from the
/// start (sums of 64 KiB on 2 cores: 31 us became 11 at 3 ranks, 37 became 18 at 4, 92 became 67 at 8).
class Backoff {
 public:
  explicit Backoff(bool crowded) : yielding_(crowded) {}

  void pause() {
    if (!yielding_) yielding_ = monotonic_s() > start_s_ + look_again_s;
    if (yielding_) sched_yield();
  }

 private:
  static constexpr double look_again_s = 10e-6;
  double start_s_ = monotonic_s();
  bool yielding_;
};

}  // namespace lockstep::comm
