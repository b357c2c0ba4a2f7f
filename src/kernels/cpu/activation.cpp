// ReLU, SiLU and GELU, forward and backward.
// GELU: Hendrycks, Gimpel, "Gaussian error linear units", 2016. With 0.5 (1 + tanh u) = sigmoid(2 u) the tanh
// form needs one exponential and loses nothing in the lower tail.
#include "kernels/cpu/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored.h"
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

template <class Function, class E>
void forward(int threads, std::int64_t count, const E* x, E* y) {
  parallel_ranges(threads, count, elements_per_thread, [=](std::int64_t begin, std::int64_t end) {
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) put(y[i], Function::value(widened(x[i])));
  });
}

template <class Function, class E>
void backward(int threads, std::int64_t count, const E* x, const E* dy, E* dx) {
  parallel_ranges(threads, count, elements_per_thread, [=](std::int64_t begin, std::int64_t end) {
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) put(dx[i], widened(dy[i]) * Function::slope(widened(x[i])));
  });
}

/// body(the function's type).
template <class Body>
void with_function(Activation kind, const Body& body) {
  switch (kind) {
    case Activation::relu:
      return body(Relu{});
    case Activation::silu:
      return body(Silu{});
    case Activation::gelu_erf:
      return body(GeluErf{});
    case Activation::gelu_tanh:
      return body(GeluTanh{});
  }
}

}  // namespace

void CpuBackend::activation(Activation kind, const Tensor& x, const Tensor& y) {
  constexpr const char* operation = "activation";
  require_alike(operation, "y", y, x);
  by_type_of(x, [&]<class E>(E) {
    const E* const from = elements<E>(operation, "x", x);
    E* const to = elements<E>(operation, "y", y);
    with_function(kind,
                  [&]<class Function>(Function) { forward<Function>(threads_, x.stored_numel(), from, to); });
  });
}

void CpuBackend::activation_backward(Activation kind, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  constexpr const char* operation = "activation_backward";
  require_alike(operation, "dy", dy, x);
  require_alike(operation, "dx", dx, x);
  by_type_of(x, [&]<class E>(E) {
    const E *const at = elements<E>(operation, "x", x), *const from = elements<E>(operation, "dy", dy);
    E* const to = elements<E>(operation, "dx", dx);
    with_function(kind, [&]<class Function>(Function) {
      backward<Function>(threads_, x.stored_numel(), at, from, to);
    });
  });
}

}  // namespace lockstep::kernels
