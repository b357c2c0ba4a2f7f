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

/// Which values of a metric are better, for checkpoint.keep_best.
enum class Better { lower, higher };

/// What an output says of field y.
enum class OutputMeaning {
  regression,  ///< estimates of its values, or none of it
  classes,     ///< [N, ..., C]: the logits of C classes, of labels [N, ...]
  binary,      ///< [N, ...]: the logits of 1, of labels 1 and 0
};

/// A figure of an evaluation: a function of sums over all samples, so that it does not depend on the
/// distribution of the samples over the ranks.
struct Metric {
  std::string name;               ///< "accuracy": eval_accuracy in the metrics of a run
  Better better = Better::lower;  ///< which values are better
  int sums = 2;                   ///< number of sums
  std::function<double(std::span<const double>)> value = mean;  ///< the figure, from the sums
  bool printed = true;  ///< in lines of the log, too; false: in metrics.jsonl and --json only
  /// A difference of values of Task::target(). If that is normalised, by one deviation for all its elements,
  /// evaluations also give NAME_in_units, in the units of the file.
  bool in_units = false;

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

  /// Adds to all sums of a metric. Throws UsageError for a metric that the task does not declare, or for
  /// another number of sums.
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

/// What a model learns. Programs register tasks by name (App::task), with their own options, as they do
/// models.
class Task {
 public:
  virtual ~Task() = default;

  /// The metrics of an evaluation besides "loss", which is always the first. They do not change after
  /// check().
  virtual std::vector<Metric> metrics() const { return {}; }
  /// Called before anything else, once for each data set. Throws DataError if the data lacks a field that the
  /// loss reads, or has it in another type, and UsageError if the model does not fit the task.
  virtual void check(const Model& model, const data::Dataset& data);

  /// The loss of model(tape, batch) against fields of the batch, in training and in evaluations (see
  /// tape.pass().training). Random draws must use the numbers of tape.pass().
  virtual Loss loss(Tape& tape, Model& model, const Batch& batch) = 0;
  /// loss(), with clearer errors: DataError with the fields of a batch that does not fit the model or the
  /// loss; UsageError for a Loss{}.
  Loss operator()(Tape& tape, Model& model, const Batch& batch);
  /// Adds a chunk of an evaluation to the metrics. output: the result of model(tape, batch) in this chunk's
  /// loss().
  virtual void evaluate(Evaluation& to, const Batch& batch, const Var& output);
  /// The field whose values the output estimates, in its units; empty: none. Predictions of a normalised
  /// field are converted to the field's own units.
  virtual std::string target() const { return ""; }
  /// What the output says of field y: `lockstep predict` adds labels and probabilities, `lockstep eval
  /// --per-class` counts them.
  virtual OutputMeaning output_meaning() const { return OutputMeaning::regression; }
  /// Whether field x must be in [-1, 1]: data.range then maps the values of the files. False: as in the
  /// files.
  virtual bool takes_unit_range() const { return false; }

  // --- for a task that learns from its own losses
  /// How many numbers a training pass keeps for each of its samples; 0: none.
  virtual std::size_t numbers_per_sample() const { return 0; }
  /// Appends the numbers of this rank's passes of the last step, sample after sample in the order of the
  /// passes. A step that was launched as a graph has not called loss(): it has the passes of the last one
  /// that has, and wrote where these wrote.
  virtual void take_numbers([[maybe_unused]] std::vector<double>& to) {}
  /// Called after each step, if there are numbers per sample, with the numbers of all samples of the global
  /// batch in their order: the same on every rank, and at any number of ranks.
  virtual void after_step([[maybe_unused]] std::span<const double> numbers) {}
  /// The state for a resume: CPU tensors that share the task's memory, by name. Checkpoints hold them under
  /// /task.
  virtual std::vector<std::pair<std::string, Tensor>> state() { return {}; }
};

/// The elements as float32 on the CPU: for metrics that a task computes itself.
Tensor floats_of(const Var& output);
Tensor floats_of(const Tensor& tensor, Tape& tape);

}  // namespace lockstep
