#include "lockstep/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

#include "lockstep/base/error.h"

namespace lockstep::optim {
namespace {

using Kind = Schedule::Kind;

void check(const Schedule& schedule, std::int64_t step, std::int64_t total_steps) {
  if (!std::isfinite(schedule.lr) || schedule.lr < 0)
    throw UsageError("learning rate {} is not a finite number of at least 0", schedule.lr);
  if (!std::isfinite(schedule.min_lr) || schedule.min_lr < 0 || schedule.min_lr > schedule.lr)
    throw UsageError("least learning rate {} is not between 0 and the learning rate {}", schedule.min_lr,
                     schedule.lr);
  if (schedule.warmup_steps < 0) throw UsageError("{} warm-up steps: give 0 or more", schedule.warmup_steps);
  if (step < 0) throw UsageError("a schedule has no step {}", step);
  if (schedule.kind == Kind::wsd && (schedule.decay_steps < 1 || schedule.decay_steps > total_steps))
    throw UsageError("{} decay steps: give between 1 and the run's {}", schedule.decay_steps, total_steps);
  if (schedule.kind == Kind::step && !(schedule.gamma > 0 && std::isfinite(schedule.gamma)))
    throw UsageError("a learning rate cannot be multiplied by {}: give a positive number", schedule.gamma);
  if (schedule.kind == Kind::step &&
      std::ranges::adjacent_find(schedule.milestones, std::greater_equal()) != schedule.milestones.end())
    throw UsageError("milestones of the learning rate must rise");
  if (schedule.kind == Kind::poly && !(schedule.power > 0 && std::isfinite(schedule.power)))
    throw UsageError("power {} of the learning rate's decay is not a positive number", schedule.power);
}

double after_milestones(const Schedule& schedule, std::int64_t step) {
  double rate = schedule.lr;
  for (const std::int64_t milestone : schedule.milestones) {
    if (step >= milestone) rate *= schedule.gamma;
  }
  return rate;
}

/// Progress of the decay from lr to min_lr, from 0 to 1. It takes the last `decay_steps` steps; without any,
/// it is 1.
double progress(std::int64_t step, std::int64_t decay_steps, std::int64_t total_steps) {
  if (decay_steps <= 0) return 1;
  const std::int64_t begin = total_steps - decay_steps;
  return std::clamp(static_cast<double>(step - begin) / static_cast<double>(decay_steps), 0.0, 1.0);
}

/// The fraction of lr - min_lr that is left after the warm-up.
double remaining(const Schedule& schedule, std::int64_t step, std::int64_t total_steps) {
  const std::int64_t decay_steps =
      schedule.kind == Kind::wsd ? schedule.decay_steps : total_steps - schedule.warmup_steps;
  const double t = progress(step, decay_steps, total_steps);
  if (schedule.kind == Kind::cosine) return 0.5 * (1 + std::cos(std::numbers::pi * t));
  return schedule.kind == Kind::poly ? std::pow(1 - t, schedule.power) : 1 - t;
}

}  // namespace

double Schedule::at(std::int64_t step, std::int64_t total_steps) const {
  check(*this, step, total_steps);
  if (step < warmup_steps) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (kind == Kind::constant) return lr;
  if (kind == Kind::step) return after_milestones(*this, step);
  return min_lr + (lr - min_lr) * remaining(*this, step, total_steps);
}

Schedule::Kind schedule_named(std::string_view name) {
  if (name == "constant") return Kind::constant;
  if (name == "cosine") return Kind::cosine;
  if (name == "linear") return Kind::linear;
  if (name == "wsd") return Kind::wsd;
  if (name == "step") return Kind::step;
  if (name == "poly") return Kind::poly;
  throw UsageError("'{}' is not a learning-rate schedule: use constant, cosine, linear, wsd, step or poly",
                   name);
}

Schedule schedule_of(const OptimizerConfig& config) {
  return {.kind = schedule_named(config.schedule),
          .lr = config.lr,
          .min_lr = config.min_lr,
          .warmup_steps = config.warmup_steps,
          .decay_steps = config.decay_steps,
          .milestones = config.milestones,
          .gamma = config.gamma,
          .power = config.power};
}

}  // namespace lockstep::optim
