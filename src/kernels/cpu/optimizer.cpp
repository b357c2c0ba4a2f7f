// Optimizer steps and exponential moving averages: one pass over memory. Each element is computed alone, so
// that a tensor may be cut into ranges anywhere without changing a bit.
#include <cmath>

#include "kernels/cpu/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 8192;
constexpr std::int64_t tile = 2048;  // updated, then averaged while still in the cache

/// The factors of AdamW in the form and order PyTorch applies them.
struct AdamWFactors {
  explicit AdamWFactors(const AdamWStep& step)
      : decay(static_cast<float>(1.0 - step.lr * step.weight_decay)),
        gradient(step.gradient_factor),
        beta1(static_cast<float>(step.beta1)),
        beta2(static_cast<float>(step.beta2)),
        fresh1(static_cast<float>(1.0 - step.beta1)),
        fresh2(static_cast<float>(1.0 - step.beta2)),
        correction2(
            static_cast<float>(std::sqrt(1.0 - std::pow(step.beta2, static_cast<double>(step.step))))),
        eps(static_cast<float>(step.eps)),
        rate(static_cast<float>(step.lr / (1.0 - std::pow(step.beta1, static_cast<double>(step.step))))) {}

  float decay, gradient, beta1, beta2, fresh1, fresh2, correction2, eps, rate;
};

void adamw_range(const AdamWFactors f, std::int64_t begin, std::int64_t end, float* value,
                 const float* gradient, float* exp_avg, float* exp_avg_sq) {
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) {
    const float g = gradient[i] * f.gradient;
    const float m = f.beta1 * exp_avg[i] + f.fresh1 * g;
    const float v = f.beta2 * exp_avg_sq[i] + f.fresh2 * (g * g);
    const float denominator = std::sqrt(v) / f.correction2 + f.eps;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    value[i] = value[i] * f.decay - f.rate * (m / denominator);
  }
}

struct SgdFactors {
  explicit SgdFactors(const SgdStep& step)
      : rate(static_cast<float>(step.lr)),
        momentum(static_cast<float>(step.momentum)),
        decay(static_cast<float>(step.weight_decay)),
        gradient(step.gradient_factor) {}

  float rate, momentum, decay, gradient;
};

enum class Momentum { none, first, plain, nesterov, first_nesterov };

template <Momentum Kind>
void sgd_range(const SgdFactors f, std::int64_t begin, std::int64_t end, float* value, const float* gradient,
               float* buffer) {
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) {
    float g = gradient[i] * f.gradient + f.decay * value[i];
    if constexpr (Kind != Momentum::none) {
      constexpr bool first = Kind == Momentum::first || Kind == Momentum::first_nesterov;
      const float b = first ? g : f.momentum * buffer[i] + g;
      buffer[i] = b;
      g = Kind == Momentum::nesterov || Kind == Momentum::first_nesterov ? g + f.momentum * b : b;
    }
    value[i] = value[i] - f.rate * g;
  }
}

void average_range(double decay, std::int64_t begin, std::int64_t end, const float* value, float* average) {
  const float keep = static_cast<float>(decay), fresh = static_cast<float>(1.0 - decay);
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) average[i] = keep * average[i] + fresh * value[i];
}

/// update(begin, end) in tiles, each followed by the averages of the new values.
template <class Update>
void in_tiles(int threads, std::int64_t count, const float* value, std::span<const EmaTarget> ema,
              const Update& update) {
  parallel_ranges(threads, count, elements_per_thread, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t begin = first; begin < last; begin += tile) {
      const std::int64_t end = std::min(last, begin + tile);
      update(begin, end);
      for (const EmaTarget& target : ema) {
        average_range(target.decay, begin, end, value, static_cast<float*>(target.average.raw()));
      }
    }
  });
}

void require_averages(const char* operation, const Tensor& value, std::span<const EmaTarget> ema) {
  for (const EmaTarget& target : ema) {
    plain_floats(operation, "an EMA average", target.average);
    require_shape(operation, "an EMA average", target.average, value.shape());
  }
}

float* alike(const char* operation, const char* name, const Tensor& tensor, const Tensor& value) {
  float* data = plain_floats(operation, name, tensor);
  require_shape(operation, name, tensor, value.shape());
  return data;
}

}  // namespace

namespace {

void update(int threads, const AdamWUpdate& with) {
  const auto& [step, value, gradient, exp_avg, exp_avg_sq, ema] = with;
  if (step.step < 1) throw UsageError("adamw: steps count from 1, not {}", step.step);
  float* p = plain_floats("adamw", "value", value);
  const float* g = alike("adamw", "gradient", gradient, value);
  float *m = alike("adamw", "exp_avg", exp_avg, value), *v = alike("adamw", "exp_avg_sq", exp_avg_sq, value);
  require_averages("adamw", value, ema);
  const AdamWFactors factors(step);
  in_tiles(threads, value.numel(), p, ema,
           [&](std::int64_t begin, std::int64_t end) { adamw_range(factors, begin, end, p, g, m, v); });
}

void update(int threads, const SgdUpdate& with) {
  const auto& [step, value, gradient, momentum_buffer, ema] = with;
  float* p = plain_floats("sgd", "value", value);
  const float* g = alike("sgd", "gradient", gradient, value);
  const bool has_momentum = step.momentum != 0;
  float* buffer = has_momentum ? alike("sgd", "momentum_buffer", momentum_buffer, value) : nullptr;
  require_averages("sgd", value, ema);
  const SgdFactors factors(step);
  const auto run = [threads, count = value.numel(), averages = ema, factors, p, g, buffer]<Momentum Kind>() {
    in_tiles(threads, count, p, averages, [&](std::int64_t begin, std::int64_t end) {
      sgd_range<Kind>(factors, begin, end, p, g, buffer);
    });
  };
  if (!has_momentum) return run.template operator()<Momentum::none>();
  if (step.nesterov) {
    return step.first ? run.template operator()<Momentum::first_nesterov>()
                      : run.template operator()<Momentum::nesterov>();
  }
  return step.first ? run.template operator()<Momentum::first>() : run.template operator()<Momentum::plain>();
}

}  // namespace

void CpuBackend::adamw(std::span<const AdamWUpdate> updates) {
  for (const AdamWUpdate& one : updates) update(threads_, one);
}

void CpuBackend::sgd(std::span<const SgdUpdate> updates) {
  for (const SgdUpdate& one : updates) update(threads_, one);
}

void CpuBackend::ema(const Tensor& value, const EmaTarget& target) {
  const float* from = plain_floats("ema", "value", value);
  float* to = alike("ema", "the average", target.average, value);
  parallel_ranges(threads_, value.numel(), elements_per_thread,
                  [=, decay = target.decay](std::int64_t begin, std::int64_t end) {
                    average_range(decay, begin, end, from, to);
                  });
}

}  // namespace lockstep::kernels
