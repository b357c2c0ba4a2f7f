// The evaluations of a run: when they are due, their weights, and their metrics.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/optim/ema.h"
#include "lockstep/train/evaluate.h"
#include "train/run/weights_in_use.h"

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

/// A metric that is not a sum over samples, of the model's current weights.
struct MeasuredMetric {
  Metric metric;
  /// Collective; the same on every rank. Null if the watch, which gets the finished fraction, ended it.
  std::function<std::optional<double>(const EvaluationWatch& watch)> measure;
};

/// The parts of an evaluation, which outlive the evaluations.
struct EvaluatedParts {
  Evaluator evaluator;
  WeightsInUse& weights;         ///< of the model: all of them are evaluated
  const data::Dataset* dataset;  ///< null: nothing is evaluated
  std::string task_name = {};    ///< for errors
  std::vector<MeasuredMetric> more_metrics = {};
};

/// After every `every` steps (0: never) and after the last step, each of the weights is evaluated: the
/// model's own, then those of each EMA profile.
class Evaluations {
 public:
  Evaluations(EvaluatedParts parts, std::int64_t every, std::int64_t last_step)
      : parts_(std::move(parts)),
        metrics_(metrics_of(parts_.evaluator.task)),
        every_(every),
        last_step_(last_step) {}

  /// Under their full names: "eval_loss", "eval_ema_0.99_accuracy" ...; empty if nothing is evaluated.
  std::vector<Metric> metrics() const;
  /// UsageError unless checkpoint.keep_best is empty or one of the metrics.
  void check_keep_best(const std::string& metric) const;
  /// Which of two values of a metric is better; Better::lower for a name that is not one of the metrics.
  Better better(const std::string& metric) const;

  /// train.patience = `limit`, for the metric of checkpoint.keep_best or, if it is empty, the first one.
  /// UsageError if nothing is evaluated.
  Patience patience(std::int64_t limit, const std::string& keep_best) const;

  /// Evaluates two samples of this shard and drops the result. Throws errors of the model, the loss or the
  /// metrics (the latter only if there are evaluations). Two, because a model that confuses the batch with a
  /// dimension of the sample may accept one alone. must_learn: a loss without parameters is an error, too.
  /// Returns the number of samples: one if a shard has no more and nothing is evaluated.
  std::int64_t try_on(const Batch& shard, bool must_learn);

  bool due_after(std::int64_t step) const;
  /// The number of later evaluations.
  std::int64_t left_after(std::int64_t step) const;

  struct Result {
    std::map<std::string, double> metrics;
    std::string text;  ///< for the log: "eval loss 0.1234 accuracy 0.9876  ema/0.99 loss ..."
  };
  /// Collective. `watch` sees the fraction of the whole evaluation; null if it ended the evaluation.
  std::optional<Result> run(const EvaluationWatch& watch);

 private:
  using Weights = const optim::EmaProfile*;  // null: the model's own

  std::vector<Weights> weights() const;
  /// The metrics of each of the weights: those of the task, then the measured ones.
  std::vector<Metric> all_metrics() const;

  EvaluatedParts parts_;
  std::vector<Metric> metrics_;  // of each of the weights
  std::int64_t every_, last_step_;
};

}  // namespace lockstep::train
