// The rules of optimizers, written once for CPU and GPU: what a step makes of one element's value, gradient
// and state. Update in update.h carries them out: add a struct, and its name to Rules.
#pragma once

#include <cstdint>

#include "lockstep/ops/math.h"

namespace lockstep::ops {

/// AdamW (Loshchilov, Hutter, 2019), in PyTorch's order of operations. State: exp_avg, exp_avg_sq.
struct AdamW {
  static constexpr const char* name = "adamw";
  static constexpr int states = 2;

  struct Step {
    double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
    std::int64_t step = 1;  ///< counts from 1, for the bias corrections
    float gradient_factor =
        1;  ///< multiplies the gradient first: 1 / global count, times the clipping factor
  };
  /// UsageError if the step does not count from 1.
  static AdamW of(const Step& step);

  float decay, gradient_factor, beta1, beta2, fresh1, fresh2, correction2, eps, rate;

  LOCKSTEP_ON_ANY_DEVICE void operator()(float& value, float gradient, float& exp_avg,
                                         float& exp_avg_sq) const {
    const float g = gradient * gradient_factor;
    const float m = beta1 * exp_avg + fresh1 * g;
    const float v = beta2 * exp_avg_sq + fresh2 * (g * g);
    const float denominator = square_root(v) / correction2 + eps;
    exp_avg = m;
    exp_avg_sq = v;
    value = value * decay - rate * (m / denominator);
  }
};

/// SGD without momentum.
struct Sgd {
  static constexpr const char* name = "sgd";
  static constexpr int states = 0;
  float rate, decay, gradient_factor;

  LOCKSTEP_ON_ANY_DEVICE void operator()(float& value, float gradient) const {
    value = value - rate * (gradient * gradient_factor + decay * value);
  }
};

/// SGD with PyTorch's momentum, or Nesterov's. State: momentum_buffer.
template <bool Nesterov>
struct SgdMomentum {
  static constexpr const char* name = Nesterov ? "sgd_nesterov" : "sgd_momentum";
  static constexpr int states = 1;
  float rate, momentum, decay, gradient_factor;

  LOCKSTEP_ON_ANY_DEVICE void operator()(float& value, float gradient, float& momentum_buffer) const {
    const float g = gradient * gradient_factor + decay * value;
    momentum_buffer = momentum * momentum_buffer + g;
    value = value - rate * (Nesterov ? g + momentum * momentum_buffer : momentum_buffer);
  }
};

template <class... Rule>
struct RuleList {};

/// All that devices carry out.
using Rules = RuleList<AdamW, Sgd, SgdMomentum<false>, SgdMomentum<true>>;

}  // namespace lockstep::ops
