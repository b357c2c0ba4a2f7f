// LossSecondMoment: times with a greater loss are learned more often (Nichol, Dhariwal, 2021, section 3.3).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep::tasks {

/// Draws times with a probability proportional to the root of the mean of the last squared losses there,
/// mixed with a uniform one; uniform until all times have enough losses.
class LossSecondMoment {
 public:
  static constexpr std::int64_t history = 10;          ///< losses that are kept of each time
  static constexpr double uniform_probability = 1e-3;  ///< part of the draws that ignore the losses

  explicit LossSecondMoment(std::int64_t steps);  ///< no loss is known yet

  /// A time, and what its loss is multiplied by, so that its expectation is that of uniform draws.
  struct Draw {
    std::int64_t t = 0;
    double weight = 1;
  };
  /// uniform: in [0, 1). By the probabilities of the last update().
  Draw draw(double uniform) const;
  /// After add() or a load: the probabilities that the losses mean.
  void update();
  /// The latest loss of a time. UsageError if there is no such time.
  void add(std::int64_t t, double loss);

  /// Of each time. They sum to 1.
  const std::vector<double>& probabilities() const { return probabilities_; }
  /// losses: float64 [steps, history], the oldest first; counts: int64 [steps]. They share memory with this.
  std::vector<std::pair<std::string, Tensor>> state() const {
    return {{"losses", losses_}, {"counts", counts_}};
  }

 private:
  bool warmed_up() const;

  Tensor losses_, counts_;
  std::vector<double> probabilities_, sums_;  // sums_[t]: of the probabilities up to t
};

}  // namespace lockstep::tasks
