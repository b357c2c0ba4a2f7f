// ReLU, SiLU and GELU, forward and backward.
// GELU: Hendrycks, Gimpel, "Gaussian error linear units", 2016. With 0.5 (1 + tanh u) = sigmoid(2 u) the tanh
// form needs one exponential and loses nothing in the lower tail.
#include "kernels/cpu/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 8192;
constexpr float gelu_slope = 1.59576912f;             // 2 sqrt(2 / pi)
constexpr float gelu_cubic = 0.044715f * gelu_slope;  // of x^3

struct Relu {
  static float value(float x) { return x < 0.0f ? 0.0f : x; }  // NaN stays
  static float slope(float x) { return x > 0.0f ? 1.0f : 0.0f; }
};

struct Silu {
  static float value(float x) { return x * sigmoid(x); }
  static float slope(float x) {
    const Logistic at = logistic(x);
    return at.value + (at.slope == 0.0f ? 0.0f : x * at.slope);  // never infinity * 0
  }
};

struct GeluErf {
  static float value(float x) { return x * normal(x).cdf; }
  static float slope(float x) {
    const Normal at = normal(x);
    return std::fma(x, at.density, at.cdf);
  }
};

struct GeluTanh {
  static float value(float x) { return x * sigmoid(x * std::fma(gelu_cubic, x * x, gelu_slope)); }
  static float slope(float x) {
    const float square = x * x;
    const Logistic at = logistic(x * std::fma(gelu_cubic, square, gelu_slope));
    const float inner =
        x * std::fma(3.0f * gelu_cubic, square, gelu_slope);         // x times the slope of the argument
    return at.value + (at.slope == 0.0f ? 0.0f : at.slope * inner);  // far out inner overflows
  }
};

template <class Function>
void forward(int threads, std::int64_t count, const float* x, float* y) {
  parallel_ranges(threads, count, elements_per_thread, [=](std::int64_t begin, std::int64_t end) {
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) y[i] = Function::value(x[i]);
  });
}

template <class Function>
void backward(int threads, std::int64_t count, const float* x, const float* dy, float* dx) {
  parallel_ranges(threads, count, elements_per_thread, [=](std::int64_t begin, std::int64_t end) {
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) dx[i] = dy[i] * Function::slope(x[i]);
  });
}

}  // namespace

void CpuBackend::activation(Activation kind, const Tensor& x, const Tensor& y) {
  require_alike("activation", "y", y, x);
  const float* from = floats("activation", "x", x);
  float* to = floats("activation", "y", y);
  const std::int64_t count = x.stored_numel();
  switch (kind) {
    case Activation::relu:
      return forward<Relu>(threads_, count, from, to);
    case Activation::silu:
      return forward<Silu>(threads_, count, from, to);
    case Activation::gelu_erf:
      return forward<GeluErf>(threads_, count, from, to);
    case Activation::gelu_tanh:
      return forward<GeluTanh>(threads_, count, from, to);
  }
}

void CpuBackend::activation_backward(Activation kind, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  require_alike("activation_backward", "dy", dy, x);
  require_alike("activation_backward", "dx", dx, x);
  const float* at = floats("activation_backward", "x", x);
  const float* from = floats("activation_backward", "dy", dy);
  float* to = floats("activation_backward", "dx", dx);
  const std::int64_t count = x.stored_numel();
  switch (kind) {
    case Activation::relu:
      return backward<Relu>(threads_, count, at, from, to);
    case Activation::silu:
      return backward<Silu>(threads_, count, at, from, to);
    case Activation::gelu_erf:
      return backward<GeluErf>(threads_, count, at, from, to);
    case Activation::gelu_tanh:
      return backward<GeluTanh>(threads_, count, at, from, to);
  }
}

}  // namespace lockstep::kernels
