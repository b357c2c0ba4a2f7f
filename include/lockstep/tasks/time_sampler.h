// LossSecondMoment: draws times with a larger loss more often (Nichol, Dhariwal, 2021, section 3.3).
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
  static constexpr double uniform_probability = 1e-3;  ///< fraction of draws that ignore the losses

  explicit LossSecondMoment(std::int64_t steps);  ///< without losses

  /// Computes the probabilities and their sums from the losses. Call it after add() or a load.
  void update();
  /// Adds the latest loss of a time. UsageError if the time is out of range.
  void add(std::int64_t t, double loss);

  /// The probability of each time; they sum to 1.
  const std::vector<double>& probabilities() const { return probabilities_; }
  /// float64 [steps]: the sum of the probabilities up to each time, by which ops::Draw draws times.
  const Tensor& sums() const { return sums_; }
  /// The weight of a loss of a time, which keeps the expectation of uniform draws.
  double weight(std::int64_t t) const {
    return 1 / (static_cast<double>(probabilities_.size()) * probabilities_[static_cast<std::size_t>(t)]);
  }
  /// losses: float64 [steps, history], the oldest first; counts: int64 [steps]. They share memory with this.
  std::vector<std::pair<std::string, Tensor>> state() const {
    return {{"losses", losses_}, {"counts", counts_}};
  }

 private:
  bool warmed_up() const;

  Tensor losses_, counts_, sums_;
  std::vector<double> probabilities_;
};

}  // namespace lockstep::tasks
