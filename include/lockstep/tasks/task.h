// Task: what a model learns: the loss of a batch, and the metrics of an evaluation.
#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/autograd/loss.h"
#include "lockstep/data/dataset.h"
#include "lockstep/models/model.h"

namespace lockstep {

/// Which of two values of a metric is the better one: what checkpoint.keep_best keeps.
enum class Better { lower, higher };

/// A figure of an evaluation: a function of sums over all samples, so that it does not depend on how the
/// samples came to the ranks.
struct Metric {
  std::string name;               ///< "accuracy": eval_accuracy in the metrics of a run
  Better better = Better::lower;  ///< which values are better
  int sums = 2;                   ///< how many sums it is made of
  std::function<double(std::span<const double>)> value = mean;  ///< of the sums
  bool printed = true;  ///< in lines of the log, too; false: in metrics.jsonl and --json only

  /// The first sum divided by the second.
  static double mean(std::span<const double> sums) { return sums[0] / sums[1]; }
  /// The root of mean().
  static double root_mean(std::span<const double> sums) { return std::sqrt(mean(sums)); }
};

/// The sums of an evaluation's metrics over one chunk of samples. Chunks are the same at any number of ranks,
/// and their sums are added in their order: the result has the same bits.
class Evaluation {
 public:
  /// The metrics must outlive this; the first is "loss".
  Evaluation(std::span<const Metric> metrics, const Loss& loss);

  /// Adds to the sums of a metric, as many as it has. Throws UsageError for a metric that the task does not
  /// declare, or another number of sums.
  void add(std::string_view metric, std::initializer_list<double> sums);
  /// The mean of a loss: its sum and its count.
  void add(std::string_view metric, const Loss& loss);
  /// Sum and count of the chunk's loss.
  ops::CountedSum loss() const { return {.sum = sums_[0], .count = sums_[1]}; }

  /// All sums, metric after metric.
  std::span<const double> sums() const { return sums_; }

 private:
  std::span<const Metric> metrics_;
  std::vector<double> sums_;
};

/// What a model learns. Tasks are registered by name (App::task), with options of their own as models are.
class Task {
 public:
  virtual ~Task() = default;

  /// Of an evaluation, besides "loss", which is always the first. The same after check().
  virtual std::vector<Metric> metrics() const { return {}; }
  /// Comes before anything else, once for each data set. Throws DataError if the data has not the fields that
  /// the loss reads, or not of the right type, and UsageError if the model does not fit the task.
  virtual void check(const Model& model, const data::Dataset& data);

  /// Of a batch: model(tape, batch) against fields of the batch. In training and in evaluations
  /// (tape.pass().training tells); random draws use the numbers of tape.pass().
  virtual Loss loss(Tape& tape, Model& model, const Batch& batch) = 0;
  /// loss(), with errors that tell what is wrong: DataError for a batch that the model or the loss does not
  /// take, with its fields; UsageError for a Loss{}.
  Loss operator()(Tape& tape, Model& model, const Batch& batch);
  /// Adds a chunk of an evaluation to the metrics. output: what model(tape, batch) gave in this chunk's
  /// loss().
  virtual void evaluate(Evaluation& to, const Batch& batch, const Var& output);
  /// The field whose values the output estimates, in its units; empty: none. Predictions of a field that was
  /// normalised are given in the field's own units.
  virtual std::string target() const { return ""; }
  /// Field x comes in [-1, 1]: data.range maps the values of the files. False: as the files have it.
  virtual bool takes_unit_range() const { return false; }

  // --- for a task that learns from its own losses
  /// Numbers that a training pass leaves for each of its samples; 0: none.
  virtual std::size_t numbers_per_sample() const { return 0; }
  /// Appends those of this rank's passes of the last step, sample after sample in the order of the passes.
  virtual void take_numbers([[maybe_unused]] std::vector<double>& to) {}
  /// Comes after each step, if there are numbers per sample, with those of all samples of the global batch in
  /// their order: the same on every rank, and at any number of ranks.
  virtual void after_step([[maybe_unused]] std::span<const double> numbers) {}
  /// What a resume needs of the task: tensors on the CPU that share its memory, by name. Checkpoints hold
  /// them under /task.
  virtual std::vector<std::pair<std::string, Tensor>> state() { return {}; }
};

/// The elements as float32 on the CPU: for metrics that a task computes itself.
Tensor floats_of(const Var& output);
Tensor floats_of(const Tensor& tensor, Tape& tape);

}  // namespace lockstep
