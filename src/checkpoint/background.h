// Private to the module: one piece of work at a time beside the thread that trains.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <thread>

namespace lockstep::checkpoint {

/// The work runs on a thread of its own that gives way to all others: while cores are busy it takes what they
/// leave, and nobody hurries it. Used by one thread.
class Background {
 public:
  Background() = default;
  /// Waits for the work.
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  /// What was started before is over. FailureError if there can be no thread.
  void start(std::function<void()> work);
  bool running() const;
  /// The work has ended by an exception, which finish() has not thrown yet.
  bool failed() const;
  /// Waits for the work, and throws what it threw, once.
  void finish();

 private:
  std::thread thread_;
  std::atomic<bool> running_{false};
  std::atomic<bool> waited_for_{false};
  std::exception_ptr error_;  // the thread's while it runs
};

}  // namespace lockstep::checkpoint
