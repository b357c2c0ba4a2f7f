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

  /// A time, and the weight of its loss, which keeps the expectation of uniform draws.
  struct Draw {
    std::int64_t t = 0;  ///< the time
    double weight = 1;   ///< of its loss
  };
  /// Draws by the probabilities of the last update(). uniform: in [0, 1).
  Draw draw(double uniform) const;
  /// Computes the probabilities from the losses. Call it after add() or a load.
  void update();
  /// Adds the latest loss of a time. UsageError if the time is out of range.
  void add(std::int64_t t, double loss);

  /// The probability of each time; they sum to 1.
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
