#include "lockstep/optim/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

#include "lockstep/base/error.h"

namespace lockstep::optim {
namespace {

using Kind = Schedule::Kind;

bool rises(const std::vector<std::int64_t>& milestones) {
  return std::ranges::adjacent_find(milestones, std::greater_equal()) == milestones.end();
}

void check_at(const Schedule& schedule, std::int64_t step, std::int64_t total_steps) {
  if (!std::isfinite(schedule.lr) || schedule.lr < 0)
    throw UsageError("learning rate {} is not a finite number of at least 0", schedule.lr);
  if (!std::isfinite(schedule.min_lr) || schedule.min_lr < 0 || schedule.min_lr > schedule.lr)
    throw UsageError("minimal learning rate {} is not between 0 and the learning rate {}", schedule.min_lr,
                     schedule.lr);
  if (!std::isfinite(schedule.warmup_lr) || schedule.warmup_lr < 0)
    throw UsageError("a warm-up from a learning rate of {} is invalid: give a finite number of at least 0",
                     schedule.warmup_lr);
  if (schedule.warmup_steps < 0)
    throw UsageError("{} warm-up steps are invalid: give 0 or more", schedule.warmup_steps);
  if (step < 0) throw UsageError("step {} of a schedule is negative", step);
  if (schedule.kind == Kind::wsd && (schedule.decay_steps < 1 || schedule.decay_steps > total_steps))
    throw UsageError("{} decay steps are invalid: give between 1 and the run's {}", schedule.decay_steps,
                     total_steps);
  if (schedule.kind == Kind::step && !(schedule.gamma > 0 && std::isfinite(schedule.gamma)))
    throw UsageError("a factor of the learning rate of {} is invalid: give a positive number",
                     schedule.gamma);
  if (schedule.kind == Kind::step && !rises(schedule.milestones))
    throw UsageError("milestones of the learning rate must be increasing");
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

/// Progress of the decay from lr to min_lr, from 0 to 1, over the last `decay_steps` steps; 1 if there are
/// none.
double progress(std::int64_t step, std::int64_t decay_steps, std::int64_t total_steps) {
  if (decay_steps <= 0) return 1;
  const std::int64_t begin = total_steps - decay_steps;
  return std::clamp(static_cast<double>(step - begin) / static_cast<double>(decay_steps), 0.0, 1.0);
}

/// The remaining fraction of lr - min_lr after the warm-up.
double remaining(const Schedule& schedule, std::int64_t step, std::int64_t total_steps) {
  const std::int64_t decay_steps =
      schedule.kind == Kind::wsd ? schedule.decay_steps : total_steps - schedule.warmup_steps;
  const double t = progress(step, decay_steps, total_steps);
  if (schedule.kind == Kind::cosine) return 0.5 * (1 + std::cos(std::numbers::pi * t));
  return schedule.kind == Kind::poly ? std::pow(1 - t, schedule.power) : 1 - t;
}

}  // namespace

double Schedule::at(std::int64_t step, std::int64_t total_steps) const {
  check_at(*this, step, total_steps);
  if (step < warmup_steps)
    return warmup_lr + (lr - warmup_lr) * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (kind == Kind::constant) return lr;
  if (kind == Kind::step) return after_milestones(*this, step);
  return min_lr + (lr - min_lr) * remaining(*this, step, total_steps);
}

std::vector<Option<Schedule>> Schedule::options() {
  using namespace option;
  using S = Schedule;
  return {
      number("lr", &S::lr, Range::above(0, 1e38), "learning rate",
             {.may_change = true, .peers = {"learning_rate", "max_lr", "base_lr", "peak_lr"}}),
      number("min_lr", &S::min_lr, Range::from(0, 1e38),
             "learning rate at the end of the schedule, at most optimizer.lr",
             {.may_change = true, .peers = {"end_lr", "lr_min", "eta_min"}}),
      choice(
          "schedule", &S::kind, "schedule of the learning rate",
          {.may_change = true, .peers = {"scheduler", "lr_scheduler", "lr_schedule", "lr_scheduler_type"}}),
      number("warmup_steps", &S::warmup_steps, counts, "length of the linear warm-up",
             {.unit = "steps", .may_change = true, .peers = {"warmup", "warmup_iters", "lr_warmup_steps"}}),
      number("warmup_lr", &S::warmup_lr, Range::from(0, 1e38), "learning rate that the warm-up begins at",
             {.may_change = true, .peers = {"warmup_init_lr", "warmup_lr_init", "init_lr"}}),
      number("decay_steps", &S::decay_steps, counts,
             "wsd: length of the decay at the end, linear from lr to min_lr",
             {.unit = "steps",
              .may_change = true,
              .peers = {"num_decay_steps", "cooldown_steps", "lr_wsd_decay_iters"}}),
      numbers("milestones", &S::milestones, Range::from(1, 1e15),
              "step: the steps at which the rate is multiplied by gamma, in increasing order",
              {.unit = "steps", .may_change = true, .peers = {"lr_steps", "lr_milestones"}}),
      number("gamma", &S::gamma, Range::above(0, 1), "step: factor of the rate at each milestone",
             {.may_change = true, .peers = {"lr_gamma", "decay_rate", "lr_decay_rate"}}),
      number("power", &S::power, Range::above(0, 100),
             "poly: power p of min_lr + (lr - min_lr) (1 - t)^p, t from 0 to 1",
             {.may_change = true, .peers = {"lr_power", "poly_power"}}),
  };
}

void Schedule::check() const {
  const Schedule defaults;
  const auto require = [](bool holds, const char* name, const std::string& why) {
    if (!holds) throw Misfit(name, why);
  };
  const auto only_of = [&](Kind one, const char* name, bool initial) {
    require(kind == one || initial, name,
            fmt::format("is a key of optimizer.schedule = {}, but the schedule is {}; remove it",
                        option::word(one), option::word(kind)));
  };
  require(min_lr <= lr, "min_lr", "must be between 0 and optimizer.lr");
  require(warmup_steps > 0 || warmup_lr == 0, "warmup_lr", "needs optimizer.warmup_steps above 0");
  only_of(Kind::wsd, "decay_steps", decay_steps == defaults.decay_steps);
  only_of(Kind::step, "milestones", milestones == defaults.milestones);
  only_of(Kind::step, "gamma", gamma == defaults.gamma);
  only_of(Kind::poly, "power", power == defaults.power);
  require(kind != Kind::wsd || decay_steps > 0, "decay_steps",
          "is missing: the number of last steps in which optimizer.schedule = wsd goes to min_lr");
  if (kind != Kind::step) return;
  require(!milestones.empty(), "milestones", "is missing: the steps of optimizer.schedule = step");
  require(min_lr == 0, "min_lr", "has no effect with optimizer.schedule = step; remove it");
  require(rises(milestones), "milestones", "must be increasing");
}

}  // namespace lockstep::optim
