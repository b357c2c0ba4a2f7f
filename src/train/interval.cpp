#include "train/interval.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace lockstep::train {

nlohmann::json Interval::to_json() const {
  std::vector<double> compute_ms;
  for (const double sum : compute_ms_) compute_ms.push_back(std::round(mean(sum) * 1e3) / 1e3);
  nlohmann::json line = {
      {"step_ms", step_ms()}, {"data_wait_ms", data_wait_ms()}, {"exposed_comm_ms", mean(exposed_comm_ms_)}};
  if (compute_ms.empty()) return line;
  if (compute_ms.size() <= max_listed_ranks) {
    line["rank_compute_ms"] = compute_ms;
    return line;
  }
  const auto [least, greatest] = std::ranges::minmax_element(compute_ms);
  line["rank_compute_ms"] = {{"min", *least}, {"median", median(compute_ms)}, {"max", *greatest}};
  line["slowest_rank"] = greatest - compute_ms.begin();
  return line;
}

void Interval::log_last_steps(const ddp::StepResult& last, RunLogs& logs) {
  if (last.count > 0 && static_cast<std::int64_t>(last.step) >= newest_) {
    unlogged_.push_back(last.mean_loss());
    newest_ = static_cast<std::int64_t>(last.step) + 1;
  }
  std::int64_t step = newest_ - std::ssize(unlogged_);
  for (const double loss : unlogged_) logs.append(nlohmann::json{{"step", ++step}, {"loss", loss}});
}

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
