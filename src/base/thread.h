// Background threads, which receive no signals and are not bound to their creator's cores; what ends them;
// try_lock with a timeout.
#pragma once

#include <signal.h>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/cores.h"
#include "lockstep/base/error.h"

namespace lockstep {

/// Starts a thread that blocks all signals: the main thread handles them. If bind_thread() has bound threads
/// of this process, the new one may use all cores of the process, else those of its creator. Throws
/// FailureError "`who` cannot start its thread: REASON".
template <class Body>
std::thread start_background_thread(std::string_view who, Body body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  try {
    std::thread thread([body = std::move(body), bound = threads_bound()]() mutable {
      if (bound) bind_thread(given_cores());
      body();
    });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (const std::exception& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw FailureError("{} cannot start its thread: {}", who, error.what());
  }
}

/// Tells a background thread to end. The thread sleeps on it between its turns.
class StopEvent {
 public:
  void set() {
    {
      const std::lock_guard lock(mutex_);
      set_ = true;
    }
    changed_.notify_all();
  }
  /// Returns true as soon as it is set, false after timeout_s.
  bool wait_for(double timeout_s) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::duration<double>(timeout_s), [this] { return set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

/// Locks `mutex`, or gives up after timeout_s: then the result owns nothing. The holder may be blocked inside
/// a third-party library.
inline std::unique_lock<std::mutex> try_lock_for(std::mutex& mutex, double timeout_s) {
  constexpr std::chrono::microseconds between_attempts{200};
  std::unique_lock lock(mutex, std::try_to_lock);
  for (const Stopwatch watch; !lock && watch.elapsed_ms() < timeout_s * 1e3; lock.try_lock())
    std::this_thread::sleep_for(between_attempts);
  return lock;
}

}  // namespace lockstep
