// Private to the module: queries of the watchdog that may never return.
#pragma once

#include <pthread.h>

#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "lockstep/comm/communicator.h"

namespace lockstep::train {

/// The stack of the thread that made this object, which another thread can take. One object at a time.
class StackProbe {
 public:
  StackProbe();
  ~StackProbe();
  StackProbe(const StackProbe&) = delete;
  StackProbe& operator=(const StackProbe&) = delete;

  /// For a handler of a signal that interrupts the thread: stores its stack, which the next take() describes.
  /// `context` is the handler's third argument. On another thread it does nothing.
  static void keep(const void* context) noexcept;
  /// The calls, one per line, innermost first: of the stored stack, or of the current one. Interrupts the
  /// thread for microseconds. A thread inside a system call may not answer; the text then reports it.
  std::string take() const;

 private:
  pthread_t thread_;
};

/// Polls a transport for its asynchronous error, in a thread of its own. One thread at a time may call
/// watch(); error() is for any thread.
class TransportProbe {
 public:
  /// Polls every interval_s. If the transport does not answer within timeout_s at the end of the polling, the
  /// thread is left behind.
  explicit TransportProbe(double interval_s, double timeout_s = 10)
      : interval_s_(interval_s), timeout_s_(timeout_s) {}
  ~TransportProbe() { stop(); }
  TransportProbe(const TransportProbe&) = delete;
  TransportProbe& operator=(const TransportProbe&) = delete;

  /// From now on polls this transport, or none. The previous transport may be destroyed when this returns.
  /// Throws FailureError if a thread cannot be started.
  void watch(const comm::GradientTransport* transport);
  /// The last answer; empty if there is no error, or no answer.
  std::string error() const;

 private:
  struct Questions;
  void stop();

  double interval_s_, timeout_s_;
  mutable std::mutex mutex_;              ///< guards questions_, which only watch() changes
  std::shared_ptr<Questions> questions_;  ///< shared with the thread, which may outlive this object
  std::thread thread_;
};

}  // namespace lockstep::train
