#include "checkpoint/retention.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lockstep::checkpoint {

Retention::Retention(int keep, std::string metric)
    : keep_(keep), metric_(std::move(metric)), more_is_better_(metric_.ends_with("accuracy")) {}

void Retention::note(std::int64_t step, std::optional<double> metric) {
  if (metric && std::isfinite(*metric)) {
    scores_[step] = *metric;
  } else {
    scores_.erase(step);
  }
}

std::optional<std::int64_t> Retention::best(std::span<const std::int64_t> steps) const {
  const std::pair<const std::int64_t, double>* best = nullptr;
  for (const auto& candidate : scores_) {
    if (std::ranges::find(steps, candidate.first) == steps.end()) continue;
    if (!best || (more_is_better_ ? candidate.second > best->second : candidate.second < best->second))
      best = &candidate;
  }
  if (!best) return std::nullopt;
  return best->first;
}

std::vector<std::int64_t> Retention::to_remove(std::span<const std::int64_t> steps,
                                               std::int64_t newest) const {
  std::vector<std::int64_t> removed;
  if (keep_ <= 0) return removed;
  const std::optional<std::int64_t> best = this->best(steps);
  int kept = 0;
  for (const std::int64_t step : steps) {
    if (step > newest || ++kept <= keep_ || step == best) continue;
    removed.push_back(step);
  }
  return removed;
}

}  // namespace lockstep::checkpoint
