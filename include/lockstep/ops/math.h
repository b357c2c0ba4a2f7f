// The functions of which formulas are made, for any device. On the CPU they are branch-free float32, so loops
// vectorise, and built from single IEEE operations and explicit fused multiply-adds, so an element's result
// is the same in a vector body and in a scalar tail. On a GPU they are CUDA's.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define LOCKSTEP_ON_ANY_DEVICE __host__ __device__
#else
#define LOCKSTEP_ON_ANY_DEVICE
#endif

namespace lockstep::ops {

LOCKSTEP_ON_ANY_DEVICE inline float multiply_add(float a, float b, float c) { return ::fmaf(a, b, c); }
LOCKSTEP_ON_ANY_DEVICE inline float absolute(float x) { return ::fabsf(x); }
LOCKSTEP_ON_ANY_DEVICE inline float square_root(float x) { return ::sqrtf(x); }
LOCKSTEP_ON_ANY_DEVICE inline double square_root(double x) { return ::sqrt(x); }
LOCKSTEP_ON_ANY_DEVICE inline double larger(double a, double b) { return a < b ? b : a; }

#ifdef __CUDA_ARCH__

__device__ inline float exponential(float x) { return ::expf(x); }

#else

/// 2^n for n in [-126, 127].
inline float power_of_two(std::int32_t n) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(n + 127) << 23);
}

/// e^x within 1.5 ulp: 0 far below, infinity above 88.72, NaN for NaN. Results below 2^-126 are denormal, or
/// 0 where denormals are flushed. (Range reduction to |r| <= ln 2 / 2 and the polynomial of Cephes' expf.)
inline float exponential(float x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  constexpr float round_magic = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  const float shifted = std::fma(x, 1.44269504f, round_magic);
  const float n = shifted - round_magic;
  float r = std::fma(n, -0.693359375f, x);
  r = std::fma(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  p = std::fma(p, r * r, r) + 1.0f;
  const std::uint32_t bits =
      std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(round_magic);
  const auto power = static_cast<std::int32_t>(bits);
  const std::int32_t half = power >> 1;  // in two factors: 2^128 and 2^-150 are no floats
  return (p * power_of_two(half)) * power_of_two(power - half);
}

#endif

struct Logistic {
  float value;  ///< 1 / (1 + e^-x)
  float slope;  ///< value (1 - value)
};

/// Both within 5 ulp for |x| < 80: nothing cancels on either side.
LOCKSTEP_ON_ANY_DEVICE inline Logistic logistic(float x) {
  const float e = exponential(-absolute(x));
  const float larger = 1.0f / (1.0f + e), smaller = e * larger;
  return {x < 0.0f ? smaller : larger, smaller * larger};
}

LOCKSTEP_ON_ANY_DEVICE inline float sigmoid(float x) { return logistic(x).value; }

struct Normal {
  float cdf;      ///< P(X <= x)
  float density;  ///< e^(-x^2 / 2) / sqrt(2 pi)
};

#ifdef __CUDA_ARCH__

__device__ inline Normal normal(float x) { return {::normcdff(x), 0.398942280f * ::expf(-0.5f * x * x)}; }

#else

/// The standard normal distribution, both within 6 ulp down to 1e-37, in the lower tail too: with a = |x| and
/// t = 1 / (1 + 0.3 a), P(X <= -a) = e^(-a^2 / 2) t p(t); p (degree 9, interpolated at Chebyshev nodes for a
/// in [0, 20]) is within 1.6e-8. e^(-a^2 / 2) is taken at the rounded square and corrected by the rounding
/// error.
inline Normal normal(float x) {
  float a = std::fabs(x);
  a = a > 20.0f ? 20.0f : a;
  const float square = a * a;
  const float error = std::fma(a, a, -square);
  const float e = exponential(-0.5f * square);
  const float gauss = std::fma(e, -0.5f * error, e);
  const float t = 1.0f / std::fma(0.3f, a, 1.0f);
  float p = -0.02085525143f;
  p = std::fma(p, t, 0.1135909277f);
  p = std::fma(p, t, -0.2306605044f);
  p = std::fma(p, t, 0.1946525508f);
  p = std::fma(p, t, -0.08145296316f);
  p = std::fma(p, t, 0.09704341275f);
  p = std::fma(p, t, 0.07815551449f);
  p = std::fma(p, t, 0.1102702f);
  p = std::fma(p, t, 0.1195693748f);
  p = std::fma(p, t, 0.1196867364f);
  const float tail = gauss * t * p;
  return {x > 0.0f ? 1.0f - tail : tail, gauss * 0.398942280f};
}

#endif

}  // namespace lockstep::ops
