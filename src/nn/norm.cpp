#include "lockstep/nn/norm.h"

#include <algorithm>

#include "ops/batch_norm.h"

namespace lockstep::nn {

LayerNorm::LayerNorm(Module& parent, std::string_view name, std::int64_t width, float eps, bool with_bias)
    : Layer(parent, name), weight(*this, "weight", {width}, Init::constant(1)), eps_(eps) {
  if (with_bias) bias.emplace(*this, "bias", Shape{width}, Init::constant(0));
}

Var LayerNorm::bias_or_zeros(Tape& tape) {
  if (bias) return tape.parameter(*bias);
  const Tensor zeros = tape.backend().empty(weight.value.shape());
  tape.backend().fill(zeros, 0);
  return tape.constant(zeros);
}

Var LayerNorm::forward(const Var& x) {
  return layer_norm(x, x.tape().parameter(weight), bias_or_zeros(x.tape()), eps_);
}

SumAndNorm LayerNorm::forward(const Var& x, const Var& branch) {
  if (!branch.value()) return {x, forward(x)};
  return add_layer_norm(x, branch, x.tape().parameter(weight), bias_or_zeros(x.tape()), eps_);
}

RMSNorm::RMSNorm(Module& parent, std::string_view name, std::int64_t width, float eps)
    : Layer(parent, name), eps_(eps), weight(*this, "weight", {width}, Init::constant(1)) {}

Var RMSNorm::forward(const Var& x) { return rms_norm(x, x.tape().parameter(weight), eps_); }

GroupNorm::GroupNorm(Module& parent, std::string_view name, int groups, std::int64_t channels, float eps)
    : Layer(parent, name),
      groups_(groups),
      eps_(eps),
      weight(*this, "weight", {channels}, Init::constant(1)),
      bias(*this, "bias", {channels}, Init::constant(0)) {
  if (groups < 1 || channels % groups != 0)
    throw UsageError("{}: {} groups do not divide {} channels", path(), groups, channels);
}

Var GroupNorm::forward(const Var& x) {
  return group_norm(x, groups_, x.tape().parameter(weight), x.tape().parameter(bias), eps_);
}

Var GroupNorm::adaptive(const Var& x, const AdaptiveNorm& how) {
  return named([&] {
    Tape& tape = x.tape();
    return adaptive_group_norm(x, groups_, tape.parameter(weight), tape.parameter(bias), eps_, how);
  });
}

namespace {

Tensor filled(std::int64_t channels, float value) {
  Tensor tensor = Tensor::empty({channels});
  if (tensor) std::fill_n(tensor.data<float>(), channels, value);
  return tensor;
}

}  // namespace

BatchNorm2d::BatchNorm2d(Module& parent, std::string_view name, std::int64_t channels,
                         const BatchNormSettings& settings)
    : Layer(parent, name),
      weight(*this, "weight", {channels}, Init::constant(1)),
      bias(*this, "bias", {channels}, Init::constant(0)),
      running_mean(*this, "running_mean", filled(channels, 0)),
      running_var(*this, "running_var", filled(channels, 1)),
      num_batches_tracked(*this, "num_batches_tracked", Tensor::zeros({}, DType::int64)),
      settings_(settings),
      moments_(*this) {
  num_batches_tracked.optional = true;  // PyTorch before 0.4.1 had none
}

BatchNormOptions BatchNorm2d::options(const Var& x) {
  const std::int64_t channels = weight.value.numel();
  values_ = channels == 0 ? 0 : x.value().numel() / channels;
  return {.eps = settings_.eps,
          .running_mean = running_mean.value,
          .running_var = running_var.value,
          .transport = settings_.sync ? x.tape().pass().layer_transport : nullptr,
          .statistic = &moments_,
          .frozen = settings_.frozen_statistics};
}

Var BatchNorm2d::forward(const Var& x) {
  Tape& tape = x.tape();
  return batch_norm(x, tape.parameter(weight), tape.parameter(bias), options(x));
}

Var BatchNorm2d::relu(const Var& x, const Var& shortcut) {
  return named([&] {
    Tape& tape = x.tape();
    return batch_norm_relu(x, tape.parameter(weight), tape.parameter(bias), shortcut, options(x));
  });
}

BatchNorm2d::RunningMoments::RunningMoments(BatchNorm2d& owner)
    : Moments(owner, "moments", 2 * owner.weight.value.numel() + 1), owner_(owner) {}

// The layout is BatchNormOptions::statistic's; the moments are relative to the old running mean.
void BatchNorm2d::RunningMoments::apply(kernels::Backend& backend, const Tensor& total) {
  backend.run(ops::UpdateRunning{total, owner_.settings_.momentum, owner_.running_mean.value,
                                 owner_.running_var.value, owner_.num_batches_tracked.value});
}

SyncBatchNorm::SyncBatchNorm(Module& parent, std::string_view name, std::int64_t channels,
                             BatchNormSettings settings)
    : BatchNorm2d(parent, name, channels, [&] {
        settings.sync = true;
        return settings;
      }()) {}

void convert_sync_batch_norm(Module& model) {
  model.for_each_module([](Module& module) {
    if (auto* const norm = dynamic_cast<BatchNorm2d*>(&module)) norm->settings_.sync = true;
  });
}

void freeze_statistics(Module& model) {
  bool any = false;
  model.for_each_module([&](Module& module) {
    auto* const norm = dynamic_cast<BatchNorm2d*>(&module);
    any = any || norm;
    if (norm) norm->settings_.frozen_statistics = true;
  });
  if (!any) throw UsageError("the model has no batch norm whose statistics could be frozen");
}

}  // namespace lockstep::nn
