// train.patience: ends a run whose evaluations no longer improve.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/tasks/task.h"

namespace lockstep::train {

/// Provenance: Patience::to_text() when the checkpoint was saved.
inline constexpr const char* patience_provenance = "patience";

/// Counts the evaluations since the best value of one metric. The same on every rank if the values are.
class Patience {
 public:
  /// `evaluations` without a better value end the run; 0: none does.
  Patience(std::int64_t evaluations, std::string metric, Better better)
      : evaluations_(evaluations), metric_(std::move(metric)), better_(better) {}

  bool counts() const { return evaluations_ > 0; }
  const std::string& metric() const { return metric_; }
  /// Adds the evaluation after `step`; NaN is no better value. Steps that are counted already change nothing.
  void add(std::int64_t step, double value);
  bool is_over() const { return counts() && count_ >= evaluations_; }
  /// "3 evaluations (train.patience) did not improve eval_loss, 0.1234 after step 60"
  std::string why() const;

  /// The counts, for a checkpoint.
  std::string to_text() const;
  /// Continues from the counts of a checkpoint; those of another metric, or none, are dropped.
  void restore(const std::string& text);

 private:
  std::int64_t evaluations_;
  std::string metric_;
  Better better_;
  std::int64_t count_ = 0, last_step_ = 0, best_step_ = 0;
  std::optional<double> best_;
};

}  // namespace lockstep::train
