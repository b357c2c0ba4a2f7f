#include "lockstep/train/evaluate.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/progress.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/data/loader.h"
#include "lockstep/kernels/backend.h"
#include "train/infer/chunks.h"

namespace lockstep::train {
namespace {

/// Chunks of about this many tokens or samples: large enough to be fast, small enough to share between ranks.
constexpr std::int64_t rows_per_chunk = 1024;

std::int64_t samples_per_chunk(const data::Dataset& dataset) {
  std::int64_t rows_per_sample = 1;  // targets
  for (const data::Field& field : dataset.fields()) {
    if (field.name == "y" && !field.ragged) rows_per_sample = std::max(rows_per_sample, field.shape.numel());
  }
  return std::clamp<std::int64_t>(rows_per_chunk / rows_per_sample, 1, 64);
}

EvaluationResult result_of(const std::vector<Metric>& metrics, std::span<const double> sums) {
  EvaluationResult result{.metrics = {}, .samples = static_cast<std::int64_t>(sums.back())};
  for (const Metric& metric : metrics) {
    const auto width = static_cast<std::size_t>(metric.sums);
    const std::span<const double> own = sums.first(width);
    const bool added = width == 1 || std::ranges::any_of(own, [](double sum) { return sum != 0; });
    if (added) result.metrics.emplace_back(metric.name, metric.value(own));
    sums = sums.subspan(width);
  }
  return result;
}

/// Exact, as all elements have one deviation.
void add_in_units(EvaluationResult& result, const std::vector<Metric>& metrics, const std::string& target,
                  const data::Dataset& dataset) {
  if (target.empty() || !data::has_field(dataset, target)) return;
  const std::optional<data::Normalization> by = dataset.meaning(target).by;
  if (!by || by->deviation.size() != 1) return;
  const std::vector<std::pair<std::string, double>> own = result.metrics;
  for (const auto& [name, value] : own)
    if (std::ranges::find(metrics, name, &Metric::name)->in_units)
      result.metrics.emplace_back(name + "_in_units", value * by->deviation[0]);
}

}  // namespace

double EvaluationResult::operator[](std::string_view metric) const {
  const auto found = std::ranges::find(metrics, metric, &std::pair<std::string, double>::first);
  if (found == metrics.end()) throw UsageError("the evaluation has no metric {}", metric);
  return found->second;
}

std::vector<Metric> metrics_of(const Task& task) {
  std::vector<Metric> metrics{{.name = "loss"}};
  for (Metric& metric : task.metrics()) {
    if (std::ranges::find(metrics, metric.name, &Metric::name) != metrics.end())
      throw UsageError("the task names the metric {} twice (loss is always a metric)", metric.name);
    for (const char* const reserved : {"", "samples", "step", "weights"})
      if (metric.name == reserved)
        throw UsageError("the task names a metric '{}', which is not a valid metric name", reserved);
    if (metric.sums < 1 || !metric.value)
      throw UsageError("the metric {} of the task has no sums or no value", metric.name);
    metrics.push_back(std::move(metric));
  }
  return metrics;
}

Evaluation evaluate_batch(const Evaluator& with, std::span<const Metric> metrics, const Batch& batch,
                          bool same_parameters) {
  with.tape.begin(
      {.training = false, .record = false, .compute = with.compute, .same_parameters = same_parameters});
  Evaluation evaluation(metrics, with.task(with.tape, with.model, batch));
  if (metrics.size() > 1) with.task.evaluate(evaluation, batch, with.model.take_output());
  return evaluation;
}

EvaluationResult evaluate(const Evaluator& with, const data::Dataset& dataset) {
  return *evaluate(with, dataset, {});
}

std::optional<EvaluationResult> evaluate(const Evaluator& with, const data::Dataset& dataset,
                                         const EvaluationWatch& watch) {
  const comm::NamedCall call(with.world, fmt::format("calls evaluate: {} samples", dataset.size()));
  Tape& tape = with.tape;
  const std::vector<Metric> metrics = metrics_of(with.task);
  int width = 1;  // the sums of all metrics, and the number of samples
  for (const Metric& metric : metrics) width += metric.sums;
  std::vector<double> sums;
  data::EvalBatches batches(dataset, samples_per_chunk(dataset), with.world);
  const auto add_chunk = [&](int chunk) {
    progress::tick();
    const Batch batch = batches.read(chunk).map(
        [&](const Tensor& field) { return kernels::on_device(field, tape.backend()); });
    const Evaluation evaluation = evaluate_batch(with, metrics, batch, chunk != batches.mine().first);
    sums.insert(sums.end(), evaluation.sums().begin(), evaluation.sums().end());
    sums.push_back(static_cast<double>(batch.samples()));
  };
  const comm::ShardRange mine = batches.mine();
  // With a watch, a batch at a time: all ranks have as many rounds as rank 0, which has the most batches.
  const int chunks_a_round = watch.act ? 1 : batches.max_chunks();
  Rounds rounds{.rounds = watch.act ? batches.max_chunks() : 1,
                .make = [&](std::int64_t round, const std::function<void()>&) {
                  const auto first = static_cast<int>(round);
                  for (int i = first; i < std::min(first + chunks_a_round, mine.count); ++i)
                    add_chunk(mine.first + i);
                }};
  if (watch.act)
    rounds.watch = {.requests = watch.requests, .act = [&](std::uint64_t of_any, double fraction) {
                      tape.begin({.training = false, .record = false});  // the watch may change the weights
                      return watch.act(of_any, fraction);
                    }};
  if (!run(with.world, rounds)) return std::nullopt;
  tape.begin({.training = false, .record = false});
  EvaluationResult result = result_of(metrics, batches.sum(with.world, sums, width));
  add_in_units(result, metrics, with.task.target(), dataset);
  return result;
}

}  // namespace lockstep::train

namespace lockstep {

train::EvaluationResult evaluate(Session& session, Model& model, Task& task, const data::Dataset& dataset) {
  const progress::During evaluates(progress::Phase::evaluation);
  const comm::NamedCall call(session.world(), "calls evaluate");
  comm::run_on_all(session.world(), [&] { task.check(model, dataset); });
  Tape tape(session.backend());
  return train::evaluate({.model = model, .task = task, .tape = tape, .world = session.world()}, dataset);
}

}  // namespace lockstep
