// Timer: how long a device took, which may run behind the program.
#pragma once

namespace lockstep::kernels {

/// Spans between moments in the order of a Backend's operations. Must not outlive it; belongs to its thread.
class Timer {
 public:
  static constexpr int most_moments = 4;
  virtual ~Timer() = default;
  /// Moment `which` is when all operations asked for so far are done.
  virtual void mark(int which) = 0;
  /// Milliseconds from one moment marked to another. To be asked after a read that followed both.
  virtual double elapsed_ms(int from, int to) = 0;
};

}  // namespace lockstep::kernels
