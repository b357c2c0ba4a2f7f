#include "lockstep/tasks/built_in.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/text.h"
#include "lockstep/autograd/functions.h"
#include "lockstep/base/error.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/ops/loss.h"

namespace lockstep::tasks {
namespace {

/// Field y of a data set. DataError unless it has this type.
const data::Field& check_target(const data::Dataset& data, DType dtype, const char* task) {
  const data::Field& y = data::field_named(data, "y");
  if (y.dtype == dtype) return y;
  throw DataError("{}: field y is {} {}, but task.name = {} learns {}", data.name(), to_string(y.dtype),
                  to_string(y.shape), task,
                  dtype == DType::int64 ? "integers: labels or tokens (task.name = regression learns floats; "
                                          "data.normalize makes floats of integers)"
                                        : "numbers: floats (data.normalize = y makes floats of integers)");
}

/// Model::check_target(), with the name of the data.
void check_shape(const Model& model, const data::Dataset& data, const data::Field& y, bool labels) {
  try {
    model.check_target(data::batch_shape(1, y.shape), labels);
  } catch (const DataError& error) {
    throw DataError("{}: {}", data.name(), error.what());
  }
}

/// Labels or tokens below the model's classes, where both are known.
void check_classes(const Model& model, const data::Dataset& data, const data::Field& y) {
  if (model.classes() == 0 || y.classes <= model.classes()) return;
  throw DataError("{}: field y has values up to {}, but the model has {} classes (0 to {})", data.name(),
                  y.classes - 1, model.classes(), model.classes() - 1);
}

/// A target in the output's shape: [N] is also that of an output [N, 1].
Tensor target_for(const Var& output, const Tensor& y, const char* task) {
  if (y.shape() == output.shape()) return y;
  if (y.numel() == output.shape().numel() && output.shape().rank() > 0 && y.shape().rank() > 0 &&
      output.shape()[0] == y.shape()[0] && (output.shape()[-1] == 1 || y.shape()[-1] == 1))
    return y.reshape(output.shape());
  throw DataError("task.name = {}: of {}, the model's output is {}, but field y is {}", task,
                  pluralized(y.shape()[0], "sample"), to_string(output.shape()), to_string(y.shape()));
}

/// How many steps of each target, of at least two dimensions, count; absent: all.
Tensor lengths_of(const std::string& field, const Batch& batch) {
  const bool has_steps = batch["y"].shape().rank() > 1 && !field.empty() && batch.has(field);
  return has_steps ? batch[field] : Tensor();
}

/// A tensor [N, T, ...] with `value` in the steps that do not count.
Tensor counted(Tape& tape, const Tensor& x, const Tensor& lengths, double value) {
  return lengths ? keep_steps(tape, x, lengths, value) : x;
}

constexpr std::int64_t ignored = ops::CrossEntropyOptions().ignore_index;

double correct_of(const Var& logits, const Tensor& targets) {
  kernels::Backend& backend = logits.tape().backend();
  const Tensor count = backend.empty({}, DType::int64);
  backend.run(ops::CountCorrect{logits.value().reshape({targets.numel(), logits.shape()[-1]}),
                                targets.reshape({targets.numel()}), count});
  std::int64_t read = 0;
  backend.copy(count, Tensor::view(&read, {}, DType::int64));
  return static_cast<double>(read);
}

}  // namespace

std::vector<Option<Classification::Options>> Classification::Options::options() {
  return {
      option::flag("per_class", &Options::per_class, "also the accuracy of each class, accuracy_class_K")};
}

/// The cross entropy with two labels a sample, of which the first has y_share and the partner's the rest; the
/// same as cross_entropy() where both are equal.
Loss mixed_loss(const Var& logits, const Batch& batch, float smoothing) {
  const Tensor &label = batch["y"], &share = batch["y_share"];
  const Shape column{label.numel(), 1};
  const Var log_p = log_softmax(to_float32(logits));
  const Var own = gather(log_p, 1, label.reshape(column)),
            partner = gather(log_p, 1, batch["y_partner"].reshape(column));
  const Var of_labels = partner + (own - partner) * logits.tape().constant(share.reshape(column));
  const float of_all = smoothing / static_cast<float>(log_p.shape()[1]);
  return loss_of(scale(sum(of_labels), smoothing - 1) - scale(sum(log_p), of_all),
                 static_cast<double>(label.numel()));
}

void Classification::check(const Model& model, const data::Dataset& data) {
  const data::Field& y = check_target(data, DType::int64, "classification");
  check_classes(model, data, y);
  check_shape(model, data, y, true);
  classes_ = model.classes();
  if (options_.per_class && classes_ == 0)
    throw UsageError("task.per_class = true: the model does not say how many classes it has");
}

std::vector<Metric> Classification::metrics() const {
  std::vector<Metric> metrics{{.name = "accuracy", .better = Better::higher}};
  if (classes_ > 5) metrics.push_back({.name = "accuracy_top5", .better = Better::higher});
  if (options_.per_class) {
    for (std::int64_t k = 0; k < classes_; ++k)
      metrics.push_back(
          {.name = fmt::format("accuracy_class_{}", k), .better = Better::higher, .printed = false});
  }
  return metrics;
}

Loss Classification::loss(Tape& tape, Model& model, const Batch& batch) {
  const float smoothing = tape.pass().training ? static_cast<float>(options_.label_smoothing) : 0.0f;
  if (batch.has("y_partner")) return mixed_loss(model(tape, batch), batch, smoothing);
  lengths_ = model.output_lengths();
  const Tensor y = counted(tape, batch["y"], lengths_of(lengths_, batch), ignored);
  return cross_entropy(model(tape, batch), y, {.label_smoothing = smoothing});
}

void Classification::evaluate(Evaluation& to, const Batch& batch, const Var& output) {
  Tape& tape = output.tape();
  const Tensor y = counted(tape, batch["y"], lengths_of(lengths_, batch), ignored);
  const double rows = to.loss().count;
  to.add("accuracy", {correct_of(output, y), rows});
  if (classes_ <= 5 && !options_.per_class) return;
  const Tensor logits = floats_of(output), targets = kernels::on_cpu(y, &tape.backend());
  const std::int64_t width = logits.shape()[-1];
  double in_top5 = 0;
  for (std::int64_t row = 0; row < targets.numel(); ++row) {
    const std::int64_t target = targets.data<std::int64_t>()[row];
    if (target == ignored) continue;
    const float* const all = logits.data<float>() + row * width;
    // Of equal logits the first counts as the larger, as in accuracy.
    const auto above = std::count_if(all, all + width, [&](const float& logit) {
      return logit > all[target] || (logit == all[target] && &logit < all + target);
    });
    in_top5 += above < 5;
    if (options_.per_class && target < classes_)
      to.add(fmt::format("accuracy_class_{}", target), {above == 0 ? 1.0 : 0.0, 1.0});
  }
  if (classes_ > 5) to.add("accuracy_top5", {in_top5, rows});
}

void Language::check(const Model& model, const data::Dataset& data) {
  check_classes(model, data, check_target(data, DType::int64, "language"));
  bytes_a_token_ = data.meaning("y").tokens.value.bytes_a_token;
}

std::vector<Metric> Language::metrics() const {
  std::vector<Metric> metrics{{.name = "perplexity", .value = [](std::span<const double> sums) {
                                 return std::exp(sums[0] / sums[1]);
                               }}};
  if (bytes_a_token_ > 0)
    metrics.push_back(
        {.name = "bits_a_byte", .value = [bytes = bytes_a_token_](std::span<const double> sums) {
           return sums[0] / sums[1] / bytes / std::numbers::ln2;
         }});
  return metrics;
}

Loss Language::loss(Tape& tape, Model& model, const Batch& batch) {
  if (!tape.pass().training) return cross_entropy(model(tape, batch), batch["y"]);
  const ops::CrossEntropyOptions options{.label_smoothing = static_cast<float>(options_.label_smoothing)};
  if (const std::optional<Model::Head> head = model.head(tape, batch))
    return linear_cross_entropy(head->x, head->weight, batch["y"], options);
  return cross_entropy(model(tape, batch), batch["y"], options);
}

void Language::evaluate(Evaluation& to, const Batch&, const Var&) {
  to.add("perplexity", {to.loss().sum, to.loss().count});
  if (bytes_a_token_ > 0) to.add("bits_a_byte", {to.loss().sum, to.loss().count});
}

std::vector<Option<Regression::Options>> Regression::Options::options() {
  return {option::choice("loss", &Options::loss, {"mse", "l1", "smooth_l1"},
                         "mean over elements: squared, absolute, or absolute with a rounded corner"),
          option::number("beta", &Options::beta, Range::above(0, 1e9), "smooth_l1: where the corner ends")};
}

void Regression::check(const Model& model, const data::Dataset& data) {
  check_shape(model, data, check_target(data, DType::float32, "regression"), false);
}

std::vector<Metric> Regression::metrics() const {
  // Sums of squared errors, of targets, of their squares, and the count. For equal targets as scikit-learn.
  const auto r2 = [](std::span<const double> sums) {
    const double variation = sums[2] - sums[1] * sums[1] / sums[3];
    if (!(variation > 0)) return sums[0] == 0 ? 1.0 : 0.0;
    return 1 - sums[0] / variation;
  };
  return {{.name = "rmse", .value = Metric::root_mean, .in_units = true},
          {.name = "mae", .in_units = true},
          {.name = "r2", .better = Better::higher, .sums = 4, .value = r2}};
}

Loss Regression::loss(Tape& tape, Model& model, const Batch& batch) {
  const Var output = model(tape, batch);
  const Tensor y = target_for(output, batch["y"], "regression");
  lengths_ = model.output_lengths();
  const PerSample of{.lengths = lengths_of(lengths_, batch)};
  if (options_.loss == "l1") return l1(output, y, of);
  if (options_.loss == "smooth_l1") return smooth_l1(output, y, static_cast<float>(options_.beta), of);
  return mse(output, y, of);
}

void Regression::evaluate(Evaluation& to, const Batch& batch, const Var& output) {
  Tape& tape = output.tape();
  const Tensor lengths = lengths_of(lengths_, batch),
               outputs = floats_of(counted(tape, to_channel_block(output, 1).value(), lengths, 0), tape),
               targets = floats_of(counted(tape, batch["y"], lengths, 0), tape);
  double squared_errors = 0, absolute_errors = 0, sum = 0, squares = 0;
  for (std::int64_t i = 0; i < targets.numel(); ++i) {
    const double y = targets.data<float>()[i], error = outputs.data<float>()[i] - y;
    squared_errors += error * error;
    absolute_errors += std::abs(error);
    sum += y;
    squares += y * y;
  }
  const double count = to.loss().count;
  to.add("rmse", {squared_errors, count});
  to.add("mae", {absolute_errors, count});
  to.add("r2", {squared_errors, sum, squares, count});
}

void Binary::check(const Model& model, const data::Dataset& data) {
  const data::Field& y = data::field_named(data, "y");
  check_shape(model, data, y, false);
  if (y.classes > 2)
    throw DataError("{}: field y has values up to {}, but task.name = binary learns 0 and 1", data.name(),
                    y.classes - 1);
}

std::vector<Metric> Binary::metrics() const { return {{.name = "accuracy", .better = Better::higher}}; }

namespace {

/// DataError for a target in CPU memory that is not a probability.
void check_probabilities(const Tensor& y) {
  const auto check = [](auto value) {
    if (!(value >= 0 && value <= 1))
      throw DataError("a target y is {}, but task.name = binary learns values from 0 to 1", value);
  };
  if (y.dtype() == DType::float32) std::for_each_n(y.data<float>(), y.numel(), check);
  if (y.dtype() == DType::int64) std::for_each_n(y.data<std::int64_t>(), y.numel(), check);
}

}  // namespace

Loss Binary::loss(Tape& tape, Model& model, const Batch& batch) {
  lengths_ = model.output_lengths();
  const Tensor lengths = lengths_of(lengths_, batch), y = counted(tape, batch["y"], lengths, 0);
  if (y.device() == Device::cpu()) check_probabilities(y);  // on a GPU: in evaluations
  const Var output = model(tape, batch);
  return bce_with_logits(output, target_for(output, tape.backend().in_type(y, DType::float32), "binary"),
                         {.lengths = lengths});
}

void Binary::evaluate(Evaluation& to, const Batch& batch, const Var& output) {
  Tape& tape = output.tape();
  const Tensor lengths = lengths_of(lengths_, batch),  // a step that does not count is not correct
      logits = floats_of(counted(tape, to_channel_block(output, 1).value(), lengths, 0), tape),
               targets = floats_of(counted(tape, batch["y"], lengths, 1), tape);
  check_probabilities(targets);
  double correct = 0;
  for (std::int64_t i = 0; i < targets.numel(); ++i)
    correct += (logits.data<float>()[i] > 0) == (targets.data<float>()[i] >= 0.5f);
  to.add("accuracy", {correct, to.loss().count});
}

}  // namespace lockstep::tasks
