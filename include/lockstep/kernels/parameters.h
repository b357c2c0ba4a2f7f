// The plain arguments of kernels: geometries, options, and what an optimizer step needs.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/base/random.h"
#include "lockstep/kernels/activation.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::kernels {

struct Convolution {
  int stride = 1;
  int padding = 0;
  int groups = 1;
};

struct Pool {
  int kernel = 2;
  int stride = 2;
  int padding = 0;
};

/// Columns [first, first + count) of a matrix [batch, time, width].
struct Columns {
  Tensor matrix;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

struct CrossEntropy {
  float label_smoothing = 0;
  std::int64_t ignore_index = -100;
};

/// A tensor, and another of its shape, type and layout that gets its elements.
struct Transfer {
  Tensor from, to;
};

/// A sum, and what to divide it by for the mean. On a device: float64 [2].
struct WeightedSum {
  double sum = 0;
  double weight = 0;
};

/// One shadow to update with the value an optimizer step produced: average = decay average + (1 - decay)
/// value.
struct EmaTarget {
  Tensor average;
  double decay = 0;  ///< in float32 1 - 0.9999 would be wrong in its fourth digit
};

/// gradient_factor multiplies the gradient first: 1 / global weight, times the clipping factor.
struct AdamWStep {
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  std::int64_t step = 1;  ///< counts from 1, for the bias corrections
  float gradient_factor = 1;
};

struct SgdStep {
  double lr = 0, momentum = 0, weight_decay = 0;
  bool nesterov = false;
  bool first = false;  ///< no momentum yet: the buffer becomes the gradient
  float gradient_factor = 1;
};

/// A step of one parameter, and the shadows that follow its new value. All of one shape.
struct AdamWUpdate {
  AdamWStep step;
  Tensor value, gradient, exp_avg, exp_avg_sq;
  std::span<const EmaTarget> ema = {};
};

struct SgdUpdate {
  SgdStep step;
  Tensor value, gradient;
  Tensor momentum_buffer = {};  ///< none if momentum is 0
  std::span<const EmaTarget> ema = {};
};

}  // namespace lockstep::kernels
