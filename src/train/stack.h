// Private to the module: the stack of the thread that trains, taken while it is stuck.
#pragma once

#include <pthread.h>

#include <string>

namespace lockstep::train {

/// Makes the thread that calls this one whose stack can be asked for. One at a time.
class StackProbe {
 public:
  StackProbe();
  ~StackProbe();
  StackProbe(const StackProbe&) = delete;
  StackProbe& operator=(const StackProbe&) = delete;

  /// From another thread: its calls, innermost first, one a line. It is interrupted for microseconds. Says so
  /// if it does not answer, as a thread inside the system cannot.
  std::string take() const;

 private:
  pthread_t thread_;
};

}  // namespace lockstep::train
