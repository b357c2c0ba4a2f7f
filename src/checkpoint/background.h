// Private to the room: one piece of work at a time beside the thread that trains.
#pragma once

#include <exception>
#include <functional>
#include <future>

namespace lockstep::checkpoint {

/// The work runs on a thread of its own that gives way to all others: while cores are busy it takes what they
/// leave, and nobody hurries it. Used by one thread.
class Background {
 public:
  Background() = default;
  /// Waits for the work.
  ~Background() = default;
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  /// What was started before is over.
  void start(std::function<void()> work);
  bool running() const;
  /// True once the work has ended by an exception.
  bool failed();
  /// Waits for the work, and throws what it threw, once.
  void finish();

 private:
  void collect();
  std::future<void> work_;
  std::exception_ptr error_;
};

}  // namespace lockstep::checkpoint
