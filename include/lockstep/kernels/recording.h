// Recordings: work that a device was asked for once, and does again as a whole.
#pragma once

#include <memory>

namespace lockstep::kernels {

/// Operations with the memory they were asked for: what is there when it is replayed is what they take. The
/// memory must still be there. Must not outlive its Backend; belongs to its thread.
class Recording {
 public:
  virtual ~Recording() = default;
  /// Asks for all of it.
  virtual void replay() = 0;
};

/// For its life, operations asked of the Backend are noted and not done. What cannot be repeated as it stands
/// throws UsageError: reads, copies from the CPU, random numbers. Tensors made meanwhile must go before the
/// end, those from before must not.
class Recorder {
 public:
  virtual ~Recorder() = default;  ///< what was noted so far is forgotten
  /// Once. Throws UsageError with the reason if nothing comes of it.
  virtual std::unique_ptr<Recording> finish() = 0;
};

}  // namespace lockstep::kernels
