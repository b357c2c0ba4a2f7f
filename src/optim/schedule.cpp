#include "lockstep/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/base/error.h"

namespace lockstep::optim {
namespace {

void check(const Schedule& schedule, std::int64_t step) {
  if (!std::isfinite(schedule.lr) || schedule.lr < 0)
    throw UsageError("learning rate {} is not a finite number of at least 0", schedule.lr);
  if (!std::isfinite(schedule.min_lr) || schedule.min_lr < 0 || schedule.min_lr > schedule.lr)
    throw UsageError("least learning rate {} is not between 0 and the learning rate {}", schedule.min_lr,
                     schedule.lr);
  if (schedule.warmup_steps < 0) throw UsageError("{} warm-up steps: give 0 or more", schedule.warmup_steps);
  if (step < 0) throw UsageError("a schedule has no step {}", step);
}

}  // namespace

double Schedule::at(std::int64_t step, std::int64_t total_steps) const {
  check(*this, step);
  if (step < warmup_steps) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (kind == Kind::constant) return lr;
  const std::int64_t decay_steps = total_steps - warmup_steps;
  // Without a single step of decay, the step past the end is at its floor.
  const double progress =
      decay_steps <= 0
          ? 1
          : std::min(1.0, static_cast<double>(step - warmup_steps) / static_cast<double>(decay_steps));
  const double remaining =
      kind == Kind::linear ? 1 - progress : 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return min_lr + (lr - min_lr) * remaining;
}

Schedule::Kind schedule_named(std::string_view name) {
  if (name == "constant") return Schedule::Kind::constant;
  if (name == "cosine") return Schedule::Kind::cosine;
  if (name == "linear") return Schedule::Kind::linear;
  throw UsageError("'{}' is no learning-rate schedule: use constant, cosine or linear", name);
}

}  // namespace lockstep::optim
