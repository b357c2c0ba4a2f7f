// ResumePoint: which records of earlier starts a run keeps when it continues.
#pragma once

#include <cstdint>

namespace lockstep::report {

/// Where a run continues. A killed run may have logged more than its last checkpoint has.
struct ResumePoint {
  std::int64_t step = 0;  ///< of the checkpoint; 0: a new run
  /// The evaluation of this step is done. Otherwise the run repeats it.
  bool evaluated = true;

  bool keeps(std::int64_t record_step, bool is_evaluation) const {
    return record_step < step || (record_step == step && (evaluated || !is_evaluation));
  }
};

/// Every evaluation records this metric, and nothing else does.
inline constexpr const char* metric_of_evaluations = "eval_loss";

}  // namespace lockstep::report
