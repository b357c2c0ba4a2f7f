#include "train/run/interval.h"

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
  const auto [min, max] = std::ranges::minmax_element(compute_ms);
  line["rank_compute_ms"] = {{"min", *min}, {"median", median(compute_ms)}, {"max", *max}};
  line["slowest_rank"] = max - compute_ms.begin();
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

}  // namespace lockstep::train
