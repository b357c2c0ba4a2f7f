// Evaluation: the metrics of a task over a dataset, every sample exactly once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/autograd/tape.h"
#include "lockstep/data/dataset.h"
#include "lockstep/tasks/task.h"
#include "lockstep/train/session.h"

namespace lockstep::train {

/// The metrics of an evaluation, in the order of the task: "loss" is the first. A metric without samples is
/// left out. Those that Metric::in_units asks for come last.
struct EvaluationResult {
  std::vector<std::pair<std::string, double>> metrics;  ///< by name, in the order of the task
  std::int64_t samples = 0;                             ///< how many were evaluated

  /// Throws UsageError if there is no such metric.
  double operator[](std::string_view metric) const;
  double loss() const { return (*this)["loss"]; }  ///< every task has it
};

/// The parts of an evaluation. The task has checked the model and the data.
struct Evaluator {
  Model& model;                    ///< in evaluation mode
  Task& task;                      ///< decides which metrics there are
  Tape& tape;                      ///< on the model's device
  comm::HostGroup& world;          ///< ranks that share the data
  DType compute = DType::float32;  ///< Pass::compute
};

/// Actions between two batches of a long evaluation.
struct EvaluationWatch {
  /// The requests of this rank, as bits. Not collective.
  std::function<std::uint64_t()> requests;
  /// Acts on the requests of all ranks, when this fraction of the evaluation is done. False ends an
  /// incomplete evaluation. Collective.
  std::function<bool(std::uint64_t of_any, double fraction)> act;

  /// The watch of a part of the work, from one fraction to another. It refers to this one.
  EvaluationWatch part(double from, double to) const {
    return {requests, [this, from, to](std::uint64_t of_any, double fraction) {
              return act(of_any, from + (to - from) * fraction);
            }};
  }
};

/// "loss", then the task's own metrics. UsageError if they are invalid.
std::vector<Metric> metrics_of(const Task& task);

/// The sums of these metrics over a batch, which is on the device. same_parameters: Pass::same_parameters.
Evaluation evaluate_batch(const Evaluator& with, std::span<const Metric> metrics, const Batch& batch,
                          bool same_parameters = false);

/// Collective; the same bits at any number of ranks. The model is in evaluation mode: no dropout, running
/// statistics. Null, on every rank, if the watch ended the evaluation.
std::optional<EvaluationResult> evaluate(const Evaluator& with, const data::Dataset& dataset,
                                         const EvaluationWatch& watch);
EvaluationResult evaluate(const Evaluator& with, const data::Dataset& dataset);

}  // namespace lockstep::train

namespace lockstep {

/// Evaluates a model of this session. Collective. Throws like Task::check.
train::EvaluationResult evaluate(Session& session, Model& model, Task& task, const data::Dataset& dataset);

}  // namespace lockstep
