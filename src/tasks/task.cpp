#include "lockstep/tasks/task.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "base/text.h"
#include "lockstep/autograd/functions.h"
#include "lockstep/base/error.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/tasks/built_in.h"
#include "lockstep/tasks/diffusion.h"
#include "lockstep/tasks/registry.h"

namespace lockstep {

Evaluation::Evaluation(std::span<const Metric> metrics, const Loss& loss) : metrics_(metrics) {
  std::size_t sums = 0;
  for (const Metric& metric : metrics) sums += static_cast<std::size_t>(metric.sums);
  sums_.assign(sums, 0.0);
  add(metrics.front().name, loss);
}

void Evaluation::add(std::string_view name, std::initializer_list<double> sums) {
  std::ptrdiff_t at = 0;
  for (const Metric& metric : metrics_) {
    if (metric.name != name) {
      at += metric.sums;
      continue;
    }
    if (static_cast<int>(sums.size()) != metric.sums)
      throw UsageError("metric {} has {} sums, but {} were added", name, metric.sums, sums.size());
    std::transform(sums.begin(), sums.end(), sums_.begin() + at, sums_.begin() + at, std::plus<>());
    return;
  }
  std::vector<std::string> names;
  for (const Metric& metric : metrics_) names.push_back(metric.name);
  const std::string nearest = nearest_name(name, names);
  throw UsageError("evaluate() adds to a metric {}, which metrics() does not name; the metrics are {}{}",
                   name, fmt::join(names, ", "),
                   nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
}

void Evaluation::add(std::string_view metric, const Loss& loss) {
  const ops::CountedSum total = loss.read();
  add(metric, {total.sum, total.count});
}

namespace {

std::string describe(const Batch& batch) {
  std::string text;
  for (std::size_t i = 0; i < batch.names().size(); ++i) {
    const Tensor& tensor = batch.tensors()[i];
    text += fmt::format("{}{} {} {}", i == 0 ? "" : ", ", batch.names()[i], to_string(tensor.dtype()),
                        to_string(tensor.shape()));
  }
  return text;
}

/// A hint if rows of numbers were read as images, for a layer that needs rows.
std::string hint_on_flat_images(const Batch& batch) {
  for (std::size_t i = 0; i < batch.names().size(); ++i) {
    const Shape& shape = batch.tensors()[i].shape();
    if (batch.names()[i] == "x" && shape.rank() == 4 && shape[2] == 1 && shape[3] == 1)
      return fmt::format("; if the file has x as [N, {}], data.format = arrays reads it so", shape[1]);
  }
  return "";
}

/// A hint if there are floats of rank 0, which a layer for rows reads as one row of the batch's length.
std::string hint_on_scalars(const Batch& batch, const std::string& target) {
  std::string names;
  for (std::size_t i = 0; i < batch.names().size(); ++i) {
    const Tensor& tensor = batch.tensors()[i];
    if (!is_floating(tensor.dtype()) || tensor.shape().rank() != 1 || batch.names()[i] == target) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", batch.names()[i]);
  }
  return names.empty()
             ? ""
             : fmt::format("; {} holds scalars: store it as [N, 1] for a layer that reads it", names);
}

}  // namespace

Loss Task::operator()(Tape& tape, Model& model, const Batch& batch) {
  Loss loss;
  try {
    loss = this->loss(tape, model, batch);
  } catch (const UsageError& error) {
    throw DataError("{}; a batch of the data has {}, samples first{}{}", error.what(), describe(batch),
                    hint_on_scalars(batch, target()), hint_on_flat_images(batch));
  }
  if (!loss.sum.value())
    throw UsageError("the task returned an empty Loss; return that of a loss function, such as mse()");
  return loss;
}

void Task::check(const Model&, const data::Dataset&) {}

void Task::evaluate(Evaluation&, const Batch&, const Var&) {}

Tensor floats_of(const Var& output) { return floats_of(to_channel_block(output, 1).value(), output.tape()); }

Tensor floats_of(const Tensor& tensor, Tape& tape) {
  kernels::Backend& backend = tape.backend();
  return kernels::on_cpu(backend.in_type(kernels::on_device(tensor, backend), DType::float32), &backend);
}

std::vector<Option<SampleOptions>> SampleOptions::options() {
  using namespace option;
  using S = SampleOptions;
  return {
      text("sampler", &S::sampler, "algorithm that makes the samples",
           {.may_change = true, .peers = {"use_ddim", "scheduler"}}, "ddpm, ddim, dpmpp_2m"),
      text("steps", &S::steps,
           "noise steps that the sampler takes: 250, ddim25 or 10,15,20; default: all of the task",
           {.may_change = true, .peers = {"timestep_respacing", "num_inference_steps", "sampling_steps"}}),
      number("eta", &S::eta, Range::from(0, 1), "ddim: 0 draws no noise, 1 as much as ddpm",
             {.may_change = true, .peers = {"ddim_eta"}}),
      number("guidance", &S::guidance, Range::from(0, 1000),
             "scale s of classifier-free guidance, none + s (class - none); 1: no guidance",
             {.may_change = true, .peers = {"guidance_scale", "cfg", "cfg_scale", "classifier_scale"}}),
      number("seed", &S::seed, range_of<std::uint64_t>(),
             "seed of the noise, which is the same in every picture",
             {.may_change = true, .peers = {"sample_seed"}}),
  };
}

namespace tasks {

void add_built_in(Registry& registry) {
  registry.add<Classification>("classification");
  registry.add<Language>("language");
  registry.add<Regression>("regression");
  registry.add<Binary>("binary");
  registry.add<Diffusion>("diffusion");
}

}  // namespace tasks

void add_built_in(Registries& registries) {
  models::add_built_in(registries.models);
  tasks::add_built_in(registries.tasks);
  optim::add_built_in(registries.optimizers);
  data::add_built_in(registries.data);
  data::add_built_in(registries.tokenizers);
  const auto mark = [](auto&... all) { (all.mark_built_in(), ...); };
  mark(registries.models, registries.tasks, registries.optimizers, registries.data, registries.tokenizers);
}

const Registries& built_in_registries() {
  static const Registries built_in = [] {
    Registries registries;
    add_built_in(registries);
    return registries;
  }();
  return built_in;
}

}  // namespace lockstep
