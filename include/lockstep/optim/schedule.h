// Learning-rate schedules: pure functions of the step, so that a resumed run needs nothing but its step.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "lockstep/base/option.h"

namespace lockstep::optim {

/// The learning rate of each step.
struct Schedule {
  /// How it falls from lr to min_lr.
  enum class Kind {
    constant,
    cosine,  ///< half a cosine from lr to min_lr (Loshchilov, Hutter 2017, without restarts)
    linear,  ///< a straight line from lr to min_lr
    wsd,     ///< lr, then a straight line to min_lr in the last decay_steps
    step,    ///< lr, times gamma from each of the milestones on; no min_lr
    poly,    ///< min_lr + (lr - min_lr) (1 - t)^power, t from 0 to 1
  };
  /// The words of a configuration.
  friend constexpr auto words(Kind) {
    return std::array{"constant", "cosine", "linear", "wsd", "step", "poly"};
  }

  Kind kind = Kind::constant;  ///< see Kind
  double lr = 1e-3;            ///< after the warm-up
  double min_lr = 0;           ///< at the end
  /// First steps, in which the rate grows linearly: warmup_lr + (lr - warmup_lr) (step + 1) / warmup_steps.
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;               ///< of wsd, which needs at least 1
  std::vector<std::int64_t> milestones = {};  ///< of step: increasing, counted from step 0
  double gamma = 0.1;                         ///< of step
  double power = 1;                           ///< of poly
  double warmup_lr = 0;                       ///< before the first step of the warm-up; may be above lr

  /// The learning rate of step `step` (counted from 0) of `total_steps`. The first warmup_steps belong to the
  /// warm-up, for every kind. The decay begins with lr at step warmup_steps (of wsd at total_steps -
  /// decay_steps), reaches min_lr at step total_steps and stays there. Allocates nothing. Throws UsageError
  /// on a negative or non-finite lr, min_lr or warmup_lr, min_lr above lr, negative warmup_steps or step,
  /// decay_steps of wsd out of [1, total_steps], milestones of step that do not increase, and gamma or power
  /// that is not positive.
  double at(std::int64_t step, std::int64_t total_steps) const;

  static std::vector<Option<Schedule>> options();  ///< keys of a configuration's [optimizer]
  /// Throws Misfit for an option that another kind has, or that this one needs.
  void check() const;
};

}  // namespace lockstep::optim
