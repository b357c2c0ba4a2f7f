// try_lock with a timeout: the holder may be blocked inside a third-party library.
#pragma once

#include <chrono>
#include <mutex>
#include <thread>

#include "lockstep/base/clock.h"

namespace lockstep {

/// Locks `mutex`, unless it stays another's for longer than patience_s: then the result owns nothing.
inline std::unique_lock<std::mutex> lock_within(std::mutex& mutex, double patience_s) {
  constexpr std::chrono::microseconds between_looks{200};
  std::unique_lock lock(mutex, std::try_to_lock);
  for (const Stopwatch watch; !lock && watch.elapsed_ms() < patience_s * 1e3; lock.try_lock())
    std::this_thread::sleep_for(between_looks);
  return lock;
}

}  // namespace lockstep
