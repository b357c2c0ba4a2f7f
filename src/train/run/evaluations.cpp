#include "train/run/evaluations.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "lockstep/autograd/gradient_sink.h"
#include "lockstep/base/error.h"
#include "lockstep/base/option.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::train {
namespace {

std::string prefix_of(const optim::EmaProfile* weights) {
  return weights ? fmt::format("eval_ema_{}_", weights->name()) : "eval_";
}

/// For a pass that records without a backward.
struct NoGradients final : GradientSink {
  GradientView gradient_view(Param&) override { return {}; }
  void ready(Param&) override {}
  GradientView gradient_view(Statistic&) override { return {}; }
  void contributed(Statistic&) override {}
};

/// One sample as two.
Batch twice(const Batch& sample, kernels::Backend& backend) {
  return sample.map([&](const Tensor& one) {
    std::vector<std::int64_t> extents(one.shape().begin(), one.shape().end());
    extents[0] = 2;
    const Tensor two = backend.empty(Shape(std::span<const std::int64_t>(extents)), one.dtype());
    for (std::int64_t row = 0; row < 2; ++row) backend.copy(one, two.rows(row, row + 1));
    return two;
  });
}

}  // namespace

void Patience::add(std::int64_t step, double value) {
  if (step <= last_step_) return;
  last_step_ = step;
  ++count_;
  if (value != value || (best_ && (better_ == Better::lower ? value >= *best_ : value <= *best_))) return;
  count_ = 0;
  best_ = value;
  best_step_ = step;
}

std::string Patience::why() const {
  return fmt::format("{} (train.patience) did not improve {}{}", pluralized(count_, "evaluation"), metric_,
                     best_ ? fmt::format(", {} after step {}", figure(*best_), best_step_) : "");
}

std::string Patience::to_text() const {
  return fmt::format("{} {} {} {} {}", metric_, count_, last_step_, best_step_,
                     best_ ? fmt::to_string(*best_) : "none");
}

void Patience::restore(const std::string& text) {
  const std::vector<std::string> words = option::words_of(text);
  if (words.size() != 5 || words[0] != metric_) return;
  parse_number(words[1], count_);
  parse_number(words[2], last_step_);
  parse_number(words[3], best_step_);
  if (double best = 0; parse_number(words[4], best)) best_ = best;
}

std::vector<Evaluations::Weights> Evaluations::weights() const {
  std::vector<Weights> all{nullptr};
  if (const optim::Ema* const ema = parts_.weights.ema())
    for (const optim::EmaProfile& profile : ema->profiles()) all.push_back(&profile);
  return all;
}

std::vector<Metric> Evaluations::all_metrics() const {
  std::vector<Metric> all = metrics_;
  for (const MeasuredMetric& one : parts_.more_metrics) all.push_back(one.metric);
  return all;
}

std::vector<Metric> Evaluations::metrics() const {
  std::vector<Metric> all;
  if (!parts_.dataset) return all;
  for (const Weights weights : this->weights())
    for (Metric metric : all_metrics()) {
      metric.name.insert(0, prefix_of(weights));
      all.push_back(std::move(metric));
    }
  return all;
}

void Evaluations::check_keep_best(const std::string& metric) const {
  std::vector<std::string> names;
  for (const Metric& one : metrics()) names.push_back(one.name);
  if (metric.empty() || std::ranges::find(names, metric) != names.end()) return;
  if (names.empty())
    throw UsageError("checkpoint.keep_best = {}: nothing is evaluated; give data.eval or data.eval_fraction",
                     metric);
  throw UsageError("checkpoint.keep_best = {}: is not a metric of this run; one of {}", metric,
                   list_of(names, 24));
}

Better Evaluations::better(const std::string& name) const {
  const std::vector<Metric> all = metrics();
  const auto found = std::ranges::find(all, name, &Metric::name);
  return found == all.end() ? Better::lower : found->better;
}

Patience Evaluations::patience(std::int64_t limit, const std::string& keep_best) const {
  if (limit > 0 && !parts_.dataset)
    throw UsageError("train.patience: nothing is evaluated; give data.eval or data.eval_fraction");
  const std::string metric = keep_best.empty() && limit > 0 ? metrics().front().name : keep_best;
  return {limit, metric, better(metric)};
}

std::int64_t Evaluations::try_on(const Batch& shard, bool must_learn) {
  auto& [model, task, tape, world, compute] = parts_.evaluator;
  // A shard of one sample is enough for training; evaluations need two.
  const Batch samples = shard.is_ragged()     ? shard
                        : shard.samples() > 1 ? shard.rows(0, 2)
                        : parts_.dataset      ? twice(shard, tape.backend())
                                              : shard;
  NoGradients sink;
  tape.begin({.training = false, .record = must_learn, .sink = &sink, .compute = compute});
  const Loss loss = task(tape, model, samples);
  if (must_learn && !loss.sum.needs_gradient())
    throw UsageError(
        "the loss depends on no trainable parameter, so there is nothing to learn; compute it from the "
        "result "
        "of model(tape, batch), and that from layers");
  if (parts_.dataset && metrics_.size() > 1) {
    Evaluation evaluation(metrics_, loss);
    const Var output = model.take_output();
    try {
      task.evaluate(evaluation, samples, output);
    } catch (const UsageError& error) {
      throw UsageError("task.name = {}: {}", parts_.task_name, error.what());
    }
  }
  tape.begin({.training = false, .record = false});  // keeps nothing of it
  return samples.samples();
}

bool Evaluations::due_after(std::int64_t step) const {
  return parts_.dataset && step > 0 && ((every_ > 0 && step % every_ == 0) || step == last_step_);
}

std::int64_t Evaluations::left_after(std::int64_t step) const {
  if (!parts_.dataset || step >= last_step_) return 0;
  const std::int64_t regular = every_ > 0 ? (last_step_ - 1) / every_ - step / every_ : 0;
  return regular + 1;  // the last step's
}

std::optional<Evaluations::Result> Evaluations::run(const EvaluationWatch& watch) {
  Result result;
  const std::vector<Metric> known = all_metrics();
  // For each of the weights the metrics of the task, then the measured ones.
  const auto parts = static_cast<double>(weights().size() * (1 + parts_.more_metrics.size()));
  double part = 0;
  const auto next_part = [&] { return watch.part(part / parts, (part + 1) / parts); };
  for (const Weights weights : this->weights()) {
    std::optional<EvaluationResult> found;
    {
      const WeightsInUse::Held held(parts_.weights, weights ? weights->name() : "");
      found = evaluate(parts_.evaluator, *parts_.dataset, next_part());
      for (const MeasuredMetric& one : parts_.more_metrics) {
        ++part;
        const std::optional<double> value = found ? one.measure(next_part()) : std::nullopt;
        if (!value) return std::nullopt;
        found->metrics.emplace_back(one.metric.name, *value);
      }
    }
    if (!found) return std::nullopt;
    ++part;
    result.text +=
        fmt::format("{}{}", result.text.empty() ? "" : "  ", weights ? "ema/" + weights->name() : "eval");
    for (const auto& [name, value] : found->metrics) {
      result.metrics[prefix_of(weights) + name] = value;
      const auto metric = std::ranges::find(known, name, &Metric::name);
      if (metric == known.end() || metric->printed) result.text += fmt::format(" {} {}", name, figure(value));
    }
  }
  return result;
}

}  // namespace lockstep::train
