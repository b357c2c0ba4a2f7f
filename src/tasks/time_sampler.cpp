#include "lockstep/tasks/time_sampler.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep::tasks {

LossSecondMoment::LossSecondMoment(std::int64_t steps)
    : losses_(Tensor::zeros({steps, history}, DType::float64)),
      counts_(Tensor::zeros({steps}, DType::int64)),
      sums_(Tensor::zeros({steps}, DType::float64)),
      probabilities_(static_cast<std::size_t>(steps)) {
  update();
}

bool LossSecondMoment::warmed_up() const {
  const std::int64_t* const counts = counts_.data<std::int64_t>();
  return std::all_of(counts, counts + counts_.numel(), [](std::int64_t count) { return count >= history; });
}

void LossSecondMoment::update() {
  const auto steps = static_cast<double>(probabilities_.size());
  if (warmed_up()) {
    double sum = 0;
    for (std::size_t t = 0; t < probabilities_.size(); ++t) {
      const double* const losses = losses_.data<double>() + static_cast<std::int64_t>(t) * history;
      double squares = 0;
      for (std::int64_t i = 0; i < history; ++i) squares += losses[i] * losses[i];
      sum += probabilities_[t] = std::sqrt(squares / history);
    }
    for (double& probability : probabilities_)
      probability =
          (sum > 0 ? probability / sum : 1 / steps) * (1 - uniform_probability) + uniform_probability / steps;
  } else {
    std::ranges::fill(probabilities_, 1 / steps);
  }
  double sum = 0;
  for (std::size_t t = 0; t < probabilities_.size(); ++t) sums_.data<double>()[t] = sum += probabilities_[t];
}

void LossSecondMoment::add(std::int64_t t, double loss) {
  if (t < 0 || t >= counts_.numel())
    throw UsageError("a loss of time {} is out of range: there are {} times", t, counts_.numel());
  double* const losses = losses_.data<double>() + t * history;
  std::int64_t& count = counts_.data<std::int64_t>()[t];
  if (count >= history) {
    std::copy(losses + 1, losses + history, losses);
    losses[history - 1] = loss;
  } else {
    losses[std::max<std::int64_t>(count, 0)] = loss;
    count = std::max<std::int64_t>(count, 0) + 1;
  }
}

}  // namespace lockstep::tasks
