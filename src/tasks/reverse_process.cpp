#include "lockstep/tasks/reverse_process.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/ops/math.h"

namespace lockstep::tasks {

LogVariances log_variances(const NoiseSchedule& schedule, Variance variance) {
  LogVariances of{.low = schedule.posterior_log_variance_clipped, .high = {}};
  if (variance == Variance::fixed_small) {
    of.high = of.low;
    return of;
  }
  for (const double beta : schedule.betas) of.high.push_back(std::log(beta));
  if (variance == Variance::fixed_large) {  // at step 0, the posterior's variance instead of beta
    of.high[0] = of.low[0];
    of.low = of.high;
  }
  return of;
}

/// A denoising step: x becomes of_x x + of_x0 (x0 + of_change (x0 - x0 of the step before)) + sigma noise.
struct ReverseProcess::Rule {
  double of_x = 0, of_x0 = 1, of_change = 0, sigma = 0;
  double width = 0;  ///< of dpmpp_2m: the change of log(signal / noise)
};

ReverseProcess::Rule ReverseProcess::rule_of(std::int64_t t, double width_before) const {
  const auto at = static_cast<std::size_t>(t);
  const double now = schedule_.alphas_cumprod[at], next = schedule_.alphas_cumprod_prev[at];
  switch (options_.sampler) {
    case Sampler::ddpm:
      return {.of_x = schedule_.posterior_mean_coef2[at], .of_x0 = schedule_.posterior_mean_coef1[at]};
    case Sampler::ddim: {
      const double sigma = options_.eta * std::sqrt((1 - next) / (1 - now)) * std::sqrt(1 - now / next);
      // noise = (x - sqrt(now) x0) / sqrt(1 - now)
      const double of_noise = std::sqrt(std::max(0.0, 1 - next - sigma * sigma));
      const double of_x = of_noise / std::sqrt(1 - now);
      return {.of_x = of_x, .of_x0 = std::sqrt(next) - of_x * std::sqrt(now), .sigma = sigma};
    }
    case Sampler::dpmpp_2m:
      break;
  }
  if (t == 0) return {.width = std::numeric_limits<double>::infinity()};  // no noise is left: x = x0
  const auto log_ratio = [](double cumprod) { return 0.5 * std::log(cumprod / (1 - cumprod)); };
  const double width = log_ratio(next) - log_ratio(now);
  const bool second_order = width_before > 0 && width <= 2 * width_before;
  return {.of_x = std::sqrt((1 - next) / (1 - now)),
          .of_x0 = -std::sqrt(next) * std::expm1(-width),
          .of_change = second_order ? width / (2 * width_before) : 0,
          .width = width};
}

void ReverseProcess::estimate_x0(std::int64_t t, std::span<const float> x, std::span<const float> output,
                                 std::span<float> x0) const {
  const double left = schedule_.alphas_cumprod[static_cast<std::size_t>(t)];
  double of_x = 0, of_output = 1;
  if (of_.predict == Predict::eps) {
    of_x = std::sqrt(1 / left);
    of_output = -std::sqrt(1 / left - 1);
  } else if (of_.predict == Predict::v) {
    of_x = std::sqrt(left);
    of_output = -std::sqrt(1 - left);
  }
  const auto a = static_cast<float>(of_x), b = static_cast<float>(of_output);
  for (std::size_t i = 0; i < x.size(); ++i) x0[i] = a * x[i] + b * output[i];
  if (!options_.clip) return;
  for (float& value : x0) value = std::clamp(value, -1.0f, 1.0f);
}

Tensor ReverseProcess::run(const Tensor& start, const Parts& parts) const {
  const bool learned = of_.variance == Variance::learned_range;
  const LogVariances variances = log_variances(schedule_, of_.variance);
  const std::int64_t samples = start.size(0), elements = samples == 0 ? 0 : start.numel() / samples;
  const auto width = static_cast<std::size_t>(elements);
  const Tensor x = Tensor::empty(start.shape()), noise = Tensor::empty(start.shape());
  std::copy_n(start.data<float>(), start.numel(), x.data<float>());
  std::vector<float> x0(static_cast<std::size_t>(start.numel())), x0_before;
  double width_before = 0;
  for (std::int64_t t = schedule_.size() - 1; t >= 0; --t) {
    const auto at = static_cast<std::size_t>(t);
    const Tensor output = parts.network(x, schedule_.timesteps[at]);
    if (output.numel() != (learned ? 2 : 1) * start.numel())
      throw UsageError("the network's output is {}, but images {} need {} as many numbers",
                       to_string(output.shape()), to_string(start.shape()), learned ? "twice" : "just");
    const Rule rule = rule_of(t, width_before);
    const bool noisy = t > 0 && (options_.sampler == Sampler::ddpm || rule.sigma > 0);
    if (noisy) parts.draw(t, noise);
    const auto of_x = static_cast<float>(rule.of_x), of_x0 = static_cast<float>(rule.of_x0),
               of_change = static_cast<float>(rule.of_change), sigma = static_cast<float>(rule.sigma),
               low = static_cast<float>(variances.low[at]), high = static_cast<float>(variances.high[at]);
    if (rule.of_change > 0) x0_before = x0;
    for (std::int64_t n = 0; n < samples; ++n) {
      const std::size_t begin = static_cast<std::size_t>(n) * width;
      const float* const out = output.data<float>() + (learned ? 2 : 1) * n * elements;
      const std::span<float> now(x.data<float>() + begin, width), estimate(x0.data() + begin, width);
      estimate_x0(t, now, {out, width}, estimate);
      for (std::size_t i = 0; i < width; ++i) {
        float target = estimate[i];
        if (of_change > 0) target += of_change * (target - x0_before[begin + i]);
        now[i] = of_x * now[i] + of_x0 * target;
      }
      if (!noisy) continue;
      const float* const drawn = noise.data<float>() + begin;
      for (std::size_t i = 0; i < width; ++i) {
        float deviation = sigma;
        if (options_.sampler == Sampler::ddpm) {
          const float fraction = learned ? 0.5f * (out[width + i] + 1.0f) : 0.0f;
          deviation = ops::exponential(0.5f * (fraction * high + (1.0f - fraction) * low));
        }
        now[i] += deviation * drawn[i];
      }
    }
    width_before = rule.width;
    if (parts.progress) parts.progress();
  }
  return x;
}

}  // namespace lockstep::tasks
