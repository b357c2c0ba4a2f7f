#include "lockstep/tasks/diffusion_loss.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "lockstep/autograd/functions.h"
#include "lockstep/base/error.h"
#include "lockstep/base/option.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/ops/gather.h"

namespace lockstep::tasks {
namespace {

/// The mean over the elements of each sample, [N].
Var by_sample(const Var& x) {
  Axes axes;
  for (int axis = 1; axis < x.shape().rank(); ++axis) axes.add(axis);
  return x.shape().rank() == 1 ? x : mean(x, axes);
}

/// Whether a step may be 0. What a GPU computes cannot depend on the steps: there, any may.
bool may_have_first(const Tensor& t) {
  if (t.device() != Device::cpu()) return true;
  const auto* const steps = t.data<std::int64_t>();
  return std::count(steps, steps + t.numel(), 0) > 0;
}

/// 1 where x > low, else 0.
Var is_above(const Var& x, float low) {
  constexpr float steep = 1e30f;  // times the smallest difference of two floats near 1, it is above 1
  return clamp(steep * (x - low), 0, 1);
}

}  // namespace

DiffusionLoss::DiffusionLoss(NoiseSchedule schedule, const Parametrization& of, Objective objective,
                             double min_snr)
    : schedule_(std::move(schedule)),
      of_(of),
      objective_(objective),
      min_snr_(min_snr),
      log_variances_(log_variances(schedule_, of.variance)) {}

double DiffusionLoss::value(Factor factor, std::int64_t step) const {
  const auto t = static_cast<std::size_t>(step);
  const double left = schedule_.alphas_cumprod[t];
  switch (factor) {
    case Factor::image:
      return std::sqrt(left);
    case Factor::noise:
      return std::sqrt(1 - left);
    case Factor::noised_in_x0:
      return std::sqrt(1 / left);
    case Factor::noise_in_x0:
      return std::sqrt(1 / left - 1);
    case Factor::x0_in_mean:
      return schedule_.posterior_mean_coef1[t];
    case Factor::noised_in_mean:
      return schedule_.posterior_mean_coef2[t];
    case Factor::log_variance:
      return schedule_.posterior_log_variance_clipped[t];
    case Factor::high_log_variance:
      return log_variances_.high[t];
    case Factor::weight:
      return weight(step);
    case Factor::is_first:
      return t == 0 ? 1 : 0;
    case Factor::timestep:
      return static_cast<double>(schedule_.timesteps[t]);
  }
  return 0;
}

/// [N, 1]. A table is copied to the device at its first use, so that a later step needs nothing of the CPU.
Tensor DiffusionLoss::at(Tape& tape, const Tensor& t, Factor factor) const {
  kernels::Backend& backend = tape.backend();
  Tensor& table = tables_[{&backend, factor}];
  if (!table || table.device() != backend.device()) {
    const Tensor here = Tensor::empty({schedule_.size(), 1});
    for (std::int64_t step = 0; step < schedule_.size(); ++step)
      here.data<float>()[step] = static_cast<float>(value(factor, step));
    table = kernels::on_device(here, backend);
  }
  const Tensor values = backend.empty({t.numel(), 1});
  backend.run(ops::Embedding{t, table, values});
  return values;
}

/// [N, 1, ...], which broadcasts to images.
Var DiffusionLoss::at(Tape& tape, const NoisedImages& images, Factor factor) const {
  Shape shape{images.t.numel()};
  while (shape.rank() < images.x0.shape().rank()) shape.append(1);
  return tape.constant(at(tape, images.t, factor).reshape(shape));
}

Tensor DiffusionLoss::timesteps(Tape& tape, const Tensor& t) const {
  return at(tape, t, Factor::timestep).reshape({t.numel()});
}

Tensor DiffusionLoss::noised(Tape& tape, const NoisedImages& images) const {
  const Var of_image = at(tape, images, Factor::image), of_noise = at(tape, images, Factor::noise);
  return (of_image * tape.constant(images.x0) + of_noise * tape.constant(images.noise)).value();
}

double DiffusionLoss::weight(std::int64_t t) const {
  if (min_snr_ == 0) return 1;
  const double left = schedule_.alphas_cumprod[static_cast<std::size_t>(t)], snr = left / (1 - left);
  const double clipped_snr = std::min(snr, min_snr_);
  switch (of_.predict) {
    case Predict::eps:
      return clipped_snr / snr;
    case Predict::x0:
      return clipped_snr;
    case Predict::v:
      break;
  }
  return clipped_snr / (snr + 1);
}

Var DiffusionLoss::target(Tape& tape, const NoisedImages& images) const {
  const Var x0 = tape.constant(images.x0), noise = tape.constant(images.noise);
  if (of_.predict == Predict::eps) return noise;
  if (of_.predict == Predict::x0) return x0;
  // v = image * noise - noise * x0, of these factors
  const Var of_noise = at(tape, images, Factor::image), of_image = at(tape, images, Factor::noise);
  return of_noise * noise - of_image * x0;
}

/// A normal distribution of each element.
struct DiffusionLoss::Gaussian {
  Var mean, log_variance;
};

namespace {

/// The divergence of two normal distributions, element by element, in nats.
Var divergence(const auto& from, const auto& to) {
  const Var logs = to.log_variance - from.log_variance;
  return 0.5f * (logs - 1.0f + exp(-logs) + square(from.mean - to.mean) * exp(-to.log_variance));
}

/// tanh, rounded correctly near 1 and -1. In the tails of a distribution function only the distance from 1 or
/// -1 counts, of which float32 keeps a few bits: those of the original, if they are rounded correctly.
Var rounded_tanh(const Var& x) {
  const Var sign = x.tape().constant((2.0f * is_above(x, 0) - 1.0f).value());
  return sign * (1.0f - 2.0f * sigmoid(-2.0f * abs(x)));
}

/// The tanh approximation of the standard normal's distribution function.
Var cumulative(const Var& x) {
  constexpr float factor = 0.797884561f;  // sqrt(2 / pi)
  return 0.5f * (1.0f + rounded_tanh(factor * (x + 0.044715f * (square(x) * x))));
}

/// Minus the logarithm of the probability that a normal distribution gives to the bin of x, element by
/// element: bins are 2 / 255 wide, those at the ends are open.
Var decoder_loss(const Var& x, const auto& by) {
  constexpr float half_bin = 1.0f / 255, edge = 0.999f, min_probability = 1e-12f;
  const Var centred = x - by.mean, inverse_deviation = exp(-0.5f * by.log_variance);
  const Var above = cumulative(inverse_deviation * (centred + half_bin));
  const Var below = cumulative(inverse_deviation * (centred - half_bin));
  const Var first = is_above(-x, edge), last = is_above(x, edge);
  const Var inside = maximum(above - below, min_probability);
  const Var log_probability = first * log(maximum(above, min_probability)) +
                              last * log(maximum(1.0f - below, min_probability)) +
                              (1.0f - first - last) * log(inside);
  return -log_probability;
}

}  // namespace

Var DiffusionLoss::bound(const Var& estimate, const Var& output, const NoisedImages& images) const {
  Tape& tape = output.tape();
  const auto factor = [&](Factor which) { return at(tape, images, which); };
  const Var x0 = tape.constant(images.x0), x = tape.constant(noised(tape, images));
  Var estimated_x0 = estimate;
  if (of_.predict == Predict::eps) {
    const Var of_x = factor(Factor::noised_in_x0), of_noise = factor(Factor::noise_in_x0);
    estimated_x0 = of_x * x - of_noise * estimate;
  } else if (of_.predict == Predict::v) {
    const Var of_x = factor(Factor::image), of_v = factor(Factor::noise);
    estimated_x0 = of_x * x - of_v * estimate;
  }
  const Var of_x0 = factor(Factor::x0_in_mean);
  const Var rest = factor(Factor::noised_in_mean) * x;
  const Gaussian target{of_x0 * x0 + rest, factor(Factor::log_variance)};
  Gaussian prediction{of_x0 * estimated_x0 + rest, factor(Factor::high_log_variance)};
  if (of_.variance == Variance::learned_range) {
    const std::int64_t channels = images.x0.shape()[1];
    const Var fraction = 0.5f * (narrow(output, 1, channels, channels) + 1.0f);
    prediction.log_variance =
        fraction * prediction.log_variance + (1.0f - fraction) * factor(Factor::log_variance);
  }
  Var nats = by_sample(divergence(target, prediction));
  if (may_have_first(images.t)) {
    const Var first = reshape(factor(Factor::is_first), nats.shape());
    nats = first * by_sample(decoder_loss(x0, prediction)) + (1.0f - first) * nats;
  }
  return nats * 1.44269504f;  // 1 / ln 2
}

DiffusionLoss::Terms DiffusionLoss::of(const Var& raw_output, const NoisedImages& images) const {
  const Var output = to_channel_block(to_float32(raw_output), 1);
  Tape& tape = output.tape();
  const bool learned = of_.variance == Variance::learned_range;
  if (learned && images.x0.shape().rank() < 2)
    throw UsageError("a learned variance needs images with channels, not samples of shape {}",
                     to_string(images.x0.shape()));
  Shape output_shape;
  for (int axis = 0; axis < images.x0.shape().rank(); ++axis)
    output_shape.append((learned && axis == 1 ? 2 : 1) * images.x0.shape()[axis]);
  if (!(output.shape() == output_shape))
    throw UsageError("the network's output is {}, but images {}{} need {}", to_string(output.shape()),
                     to_string(images.x0.shape()), learned ? " with a learned variance" : "",
                     to_string(output_shape));
  const Var estimate = learned ? narrow(output, 1, 0, images.x0.shape()[1]) : output;
  Terms terms;
  if (objective_ == Objective::kl) {
    terms.loss = terms.vb = bound(estimate, output, images);
    return terms;
  }
  terms.loss = terms.mse = by_sample(square(target(tape, images) - estimate));
  if (min_snr_ > 0) terms.loss = reshape(at(tape, images, Factor::weight), terms.mse.shape()) * terms.mse;
  if (!learned) return terms;
  // The bound trains the variance alone.
  terms.vb = bound(tape.constant(estimate.value()), output, images);
  const double scale =
      objective_ == Objective::rescaled_mse ? static_cast<double>(schedule_.size()) / 1000 : 1;
  terms.loss = terms.loss + static_cast<float>(scale) * terms.vb;
  return terms;
}

}  // namespace lockstep::tasks
