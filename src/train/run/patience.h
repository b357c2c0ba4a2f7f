// train.patience: ends a run whose evaluations no longer improve.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/tasks/task.h"

namespace lockstep::train {

/// Provenance: Patience::to_text() when the checkpoint was saved.
inline constexpr const char* patience_provenance = "patience";

/// Counts the evaluations since the best value of one metric.
class Patience {
 public:
  /// limit: evaluations without a better value that end the run; 0: none do.
  Patience(std::int64_t limit, std::string metric, Better better)
      : limit_(limit), metric_(std::move(metric)), better_(better) {}

  bool counts() const { return limit_ > 0; }
  const std::string& metric() const { return metric_; }
  /// Adds the evaluation after `step`, unless it is counted already. NaN is no better value.
  void add(std::int64_t step, double value);
  bool is_over() const { return counts() && count_ >= limit_; }
  /// "3 evaluations (train.patience) did not improve eval_loss, 0.1234 after step 60"
  std::string why() const;
  /// The counts, for a checkpoint.
  std::string to_text() const;
  /// Continues from the counts of a checkpoint, if they are of this metric.
  void restore(const std::string& text);

 private:
  std::int64_t limit_;
  std::string metric_;
  Better better_;
  std::int64_t count_ = 0, last_step_ = 0, best_step_ = 0;
  std::optional<double> best_;
};

}  // namespace lockstep::train
