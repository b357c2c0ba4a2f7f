// Background threads, which receive no signals and are not bound to their creator's cores, and the event that
// ends them. Waits: Backoff, and try_lock with a timeout.
#pragma once

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/cores.h"
#include "lockstep/base/error.h"

namespace lockstep {

/// Starts a thread that blocks all signals: the main thread handles them. If bind_thread() has bound threads
/// of this process, the new one may use all cores of the process, otherwise those of its creator. Throws
/// FailureError "`who` cannot start its thread: REASON".
template <class Body>
std::thread start_background_thread(std::string_view who, Body body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  try {
    std::thread thread([body = std::move(body), bound = threads_bound()]() mutable {
      if (bound) bind_thread(process_cores());
      body();
    });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (const std::exception& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw FailureError("{} cannot start its thread: {}", who, error.what());
  }
}

/// use(i) for i in [begin, end), in up to so many threads, fewer where the system allows no more. An error
/// ends it; of several, that of the smallest i is thrown.
template <class Use>
void for_each_in_threads(std::size_t threads, std::size_t begin, std::size_t end, const Use& use) {
  std::atomic<std::size_t> next{begin};
  std::mutex mutex;
  std::size_t failed = end;
  std::exception_ptr error;
  const auto work = [&] {
    for (std::size_t i = next++; i < end; i = next++) try {
        use(i);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (i < failed) error = std::current_exception();
        failed = std::min(i, failed);
        next = end;
      }
  };
  std::vector<std::thread> others;
  try {
    for (std::size_t i = 1; i < std::min(threads, end - begin); ++i)
      others.push_back(start_background_thread("a loop", work));
  } catch (const FailureError&) {  // those that started do it all
  }
  work();
  for (std::thread& thread : others) thread.join();
  if (error) std::rethrow_exception(error);
}

/// Tells a background thread to end. The thread sleeps on it between its turns. Throws FailureError if the
/// process is out of file descriptors.
class StopEvent {
 public:
  StopEvent() : wakes_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (wakes_ < 0) throw FailureError("cannot open an event descriptor: {}", std::strerror(errno));
  }
  ~StopEvent() { ::close(wakes_); }
  StopEvent(const StopEvent&) = delete;
  StopEvent& operator=(const StopEvent&) = delete;

  void set() noexcept {
    set_ = true;
    wake();
  }
  /// Ends the sleep early. A signal handler may call it.
  void wake() noexcept {
    const int error = errno;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wakes_, &one, sizeof one);
    errno = error;
  }
  /// Sleeps. True as soon as the event is set; false after timeout_s, or earlier if it was woken.
  bool wait_for(double timeout_s) {
    if (set_) return true;
    const double end_s = monotonic_s() + timeout_s;
    pollfd wakes{wakes_, POLLIN, 0};
    int ready = 0;
    do {
      const double left_s = std::clamp(end_s - monotonic_s(), 0.0, 1e9);
      const auto whole_s = static_cast<std::time_t>(left_s);
      const timespec left{whole_s, static_cast<long>((left_s - static_cast<double>(whole_s)) * 1e9)};
      ready = ::ppoll(&wakes, 1, &left, nullptr);
    } while (ready < 0 && errno == EINTR);
    if (ready > 0) {
      std::uint64_t count = 0;
      [[maybe_unused]] const ssize_t bytes = ::read(wakes_, &count, sizeof count);
    }
    return set_;
  }

 private:
  int wakes_;
  std::atomic<bool> set_{false};
};

/// How a rank waits for its peers. Peers are usually microseconds behind, so a rank spins at first: a yield
/// would give the core to another process for milliseconds. Later it yields at every pause, as its peer may
/// need this core. On an oversubscribed node, with more ranks than cores, it yields from the start (sums of
/// 64 KiB on 2 cores: 31 us became 11 at 3 ranks, 37 became 18 at 4, 92 became 67 at 8).
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

/// Locks `mutex`, or gives up after timeout_s: the result then owns no lock. The holder may be blocked inside
/// a third-party library.
inline std::unique_lock<std::mutex> try_lock_for(std::mutex& mutex, double timeout_s) {
  constexpr std::chrono::microseconds between_attempts{200};
  std::unique_lock lock(mutex, std::defer_lock);
  for (const Stopwatch watch; !lock.try_lock() && watch.elapsed_ms() < timeout_s * 1e3;)
    std::this_thread::sleep_for(between_attempts);
  return lock;
}

}  // namespace lockstep
