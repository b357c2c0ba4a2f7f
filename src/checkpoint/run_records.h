// Private to the module: what a run remembers about its checkpoints: evaluations, attempts, and which files
// stay.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/log.h"

namespace lockstep::checkpoint {

/// What evaluations found, in a file next to the checkpoints: a checkpoint is saved before it is evaluated.
/// RUN/checkpoints/evaluations.json: {"500": {"eval_loss": 0.31, ...}, ...}; null is a number that is not
/// finite. Of one process. Reading what is not a record gives an empty one, with a warning: it can be made
/// again.
class Evaluations {
 public:
  using Metrics = std::map<std::string, double>;

  Evaluations(std::string path, const Log& log);

  /// Null if it is not known.
  const double* find(std::int64_t step, const std::string& metric) const;
  void set(std::int64_t step, const Metrics& metrics);
  /// The files of these steps are written again, or gone.
  void forget(std::span<const std::int64_t> steps);
  /// Those of later steps are of a course that the run has left.
  void forget_after(std::int64_t step);

 private:
  void write() const;

  std::string path_;
  std::map<std::int64_t, Metrics> of_step_;
};

/// RUN/checkpoints/starts: a line "STEP STARTS" for each checkpoint that a start has been made from since,
/// and that no newer one has followed. A run that ends in order takes its own start off again: what is left
/// are those that were killed or failed. For one process.
class AttemptCounter {
 public:
  explicit AttemptCounter(std::string path) : path_(std::move(path)) {}

  using Counts = std::map<std::int64_t, int>;

  /// By step, so far.
  Counts read() const;
  void add(std::int64_t step);
  /// The last add() led to an end in order.
  void take_back(std::int64_t step);
  /// There is a newer checkpoint than those of up to this step.
  void forget_up_to(std::int64_t step);

 private:
  void write(const Counts& counts) const;
  std::string path_;
};

/// The newest `keep`, and the best one by a metric. Metrics whose names end in "accuracy" are better when
/// they are greater, others when they are less. Of equals the earlier is the best.
class Retention {
 public:
  /// keep: 0 keeps all. metric: empty for none.
  Retention(int keep, std::string metric);

  const std::string& metric() const { return metric_; }
  /// The metric of the checkpoint of this step; none if it was not evaluated.
  void note(std::int64_t step, std::optional<double> metric);
  /// Of those that exist; none if none of them was evaluated.
  std::optional<std::int64_t> best(std::span<const std::int64_t> steps) const;

  /// Those of `steps` (newest first) that go now that `newest` has been written. Later steps are of a course
  /// that the run has left; they are no reason to drop what it has just written.
  std::vector<std::int64_t> to_remove(std::span<const std::int64_t> steps, std::int64_t newest) const;

 private:
  int keep_;
  std::string metric_;
  bool more_is_better_;
  std::map<std::int64_t, double> scores_;
};

}  // namespace lockstep::checkpoint
