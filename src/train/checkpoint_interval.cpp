#include "train/checkpoint_interval.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/text.h"

namespace lockstep::train {

std::string CheckpointInterval::after_step(double step_ms) {
  constexpr std::size_t steps_to_judge = 20;
  constexpr double wanted_s = 600;
  if (config_.checkpoint.every != CheckpointConfig::auto_every) return {};
  step_ms_.push_back(step_ms);
  if (step_ms_.size() < steps_to_judge) return {};
  std::int64_t every = std::max<std::int64_t>(1, std::llround(wanted_s * 1e3 / median(step_ms_)));
  world_.broadcast(&every, sizeof every, 0);
  config_.checkpoint.every = every;
  const std::string text = to_text(config_);
  run_.write_config(text);
  store_.set_config(text);
  return fmt::format("checkpoint.every = auto: a checkpoint every {}, which take about {:.0f} s",
                     pluralized(every, "step"), static_cast<double>(every) * median(step_ms_) * 1e-3);
}

}  // namespace lockstep::train
