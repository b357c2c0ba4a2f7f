// Learning-rate schedules: pure functions of the step, so that a resumed run needs nothing but its step.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::optim {

struct Schedule {
  enum class Kind {
    constant,
    cosine,  ///< half a cosine from lr to min_lr (Loshchilov, Hutter 2017, without restarts)
    linear,  ///< a straight line from lr to min_lr
  };

  Kind kind = Kind::constant;
  double lr = 1e-3;
  double min_lr = 0;
  std::int64_t warmup_steps = 0;  ///< first steps, in which lr grows linearly: lr (step + 1) / warmup_steps

  /// The learning rate of step `step` (counted from 0) of `total_steps`. Decay begins at step warmup_steps
  /// with lr and would be at min_lr in step total_steps; it stays there. Throws UsageError on a negative or
  /// non-finite lr or min_lr, min_lr above lr, or negative warmup_steps or step.
  double at(std::int64_t step, std::int64_t total_steps) const;
};

/// "constant", "cosine", "linear". Throws UsageError on another name.
Schedule::Kind schedule_named(std::string_view name);

}  // namespace lockstep::optim
