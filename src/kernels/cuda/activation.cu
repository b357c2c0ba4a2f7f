// ReLU, SiLU and GELU, forward and backward; formulas as in cpu/activation.cpp.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/map.cuh"

namespace lockstep::kernels {
namespace {

constexpr float gelu_slope = 1.59576912f;             // 2 sqrt(2 / pi)
constexpr float gelu_cubic = 0.044715f * gelu_slope;  // of x^3

struct Logistic {
  float value, slope;
};

/// Nothing cancels on either side.
__device__ Logistic logistic(float x) {
  const float e = expf(-fabsf(x));
  const float larger = 1.0f / (1.0f + e), smaller = e * larger;
  return {x < 0.0f ? smaller : larger, smaller * larger};
}

struct Relu {
  static __device__ float value(float x) { return x < 0.0f ? 0.0f : x; }  // NaN stays
  static __device__ float slope(float x) { return x > 0.0f ? 1.0f : 0.0f; }
};

struct Silu {
  static __device__ float value(float x) { return x * logistic(x).value; }
  static __device__ float slope(float x) {
    const Logistic at = logistic(x);
    return at.value + (at.slope == 0.0f ? 0.0f : x * at.slope);  // never infinity * 0
  }
};

struct GeluErf {
  static __device__ float value(float x) { return x * normcdff(x); }
  static __device__ float slope(float x) {
    const float density = 0.398942280f * expf(-0.5f * x * x);
    return normcdff(x) + (density == 0.0f ? 0.0f : x * density);
  }
};

struct GeluTanh {
  static __device__ float value(float x) {
    return x * logistic(x * fmaf(gelu_cubic, x * x, gelu_slope)).value;
  }
  static __device__ float slope(float x) {
    const float square = x * x;
    const Logistic at = logistic(x * fmaf(gelu_cubic, square, gelu_slope));
    const float inner = x * fmaf(3.0f * gelu_cubic, square, gelu_slope);
    return at.value + (at.slope == 0.0f ? 0.0f : at.slope * inner);  // far out inner overflows
  }
};

template <class Kind>
struct Forward {
  __device__ float operator()(float x) const { return Kind::value(x); }
};

template <class Kind>
struct Backward {
  __device__ float operator()(float x, float dy) const { return dy * Kind::slope(x); }
};

template <class Run>
void with_kind(Activation kind, const Run& run) {
  switch (kind) {
    case Activation::relu:
      return run(Relu{});
    case Activation::silu:
      return run(Silu{});
    case Activation::gelu_erf:
      return run(GeluErf{});
    case Activation::gelu_tanh:
      return run(GeluTanh{});
  }
}

}  // namespace

void launch_activation(const Launch& on, Activation kind, DType dtype, const void* x, void* y,
                       std::int64_t count) {
  with_float_type<BF16>("activation", dtype, [&]<class T>(T) {
    with_kind(kind, [&]<class Kind>(Kind) {
      map("activation", on, count, Forward<Kind>{}, static_cast<T*>(y), static_cast<const T*>(x));
    });
  });
}

void launch_activation_backward(const Launch& on, Activation kind, DType dtype, const void* x, const void* dy,
                                void* dx, std::int64_t count) {
  with_float_type<BF16>("activation_backward", dtype, [&]<class T>(T) {
    with_kind(kind, [&]<class Kind>(Kind) {
      map("activation_backward", on, count, Backward<Kind>{}, static_cast<T*>(dx), static_cast<const T*>(x),
          static_cast<const T*>(dy));
    });
  });
}

}  // namespace lockstep::kernels
