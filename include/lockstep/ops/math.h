// The functions that formulas use, on any device. On the CPU they are branch-free float32, so that loops
// vectorise, and they use single IEEE operations and explicit fused multiply-adds, so that an element has the
// same result in a vector body and in a scalar tail. On a GPU they are CUDA's functions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

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
__device__ inline float exponential_less_one(float x) { return ::expm1f(x); }
__device__ inline float logarithm(float x) { return ::logf(x); }
__device__ inline float logarithm_one_plus(float x) { return ::log1pf(x); }
__device__ inline float power(float x, float exponent) { return ::powf(x, exponent); }
__device__ inline float sine(float x) { return ::sinf(x); }
__device__ inline float cosine(float x) { return ::cosf(x); }
__device__ inline float hyperbolic_tangent(float x) { return ::tanhf(x); }

#else

/// 2^n for n in [-126, 127].
inline float power_of_two(std::int32_t n) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(n + 127) << 23);
}

namespace detail {

struct Reduced {
  float rest;          ///< e^r - 1
  std::int32_t power;  ///< e^x = 2^power e^r, |r| <= ln 2 / 2
};

/// e^r - 1 by the polynomial of Cephes' expf.
inline float exponential_less_one_near_zero(float r) {
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  return std::fma(p, r * r, r);
}

inline Reduced reduced_exponential(float x) {
  constexpr float round_magic = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  const float shifted = std::fma(x, 1.44269504f, round_magic);
  const float n = shifted - round_magic;
  float r = std::fma(n, -0.693359375f, x);
  r = std::fma(n, 2.12194440e-4f, r);
  const std::uint32_t bits =
      std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(round_magic);
  return {exponential_less_one_near_zero(r), static_cast<std::int32_t>(bits)};
}

/// x 2^power in two factors: 2^128 and 2^-150 are not floats.
inline float times_power_of_two(float x, std::int32_t power) {
  const std::int32_t half = power >> 1;
  return (x * power_of_two(half)) * power_of_two(power - half);
}

struct Split {
  float mantissa;      ///< in [2/3, 4/3)
  std::int32_t power;  ///< x = 2^power mantissa
};

/// The split of a normal x > 0.
inline Split split(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::int32_t power = static_cast<std::int32_t>(bits - 0x3f2aaaabu) >> 23;
  return {std::bit_cast<float>(bits - (static_cast<std::uint32_t>(power) << 23)), power};
}

/// artanh(t) / t at z = t^2 in [0, 1/9], within 1.1e-10 in double (interpolated at Chebyshev nodes).
template <class T>
T artanh_over(T z) {
  T p = T(0.1219695394);
  p = std::fma(p, z, T(0.1069928029));
  p = std::fma(p, z, T(0.143101037));
  p = std::fma(p, z, T(0.1999935562));
  p = std::fma(p, z, T(0.3333333951));
  return std::fma(p, z, T(1));
}

/// sin(x + quarters * pi / 2): Cody and Waite's reduction to |r| <= pi / 4, in double, and the polynomials of
/// Cephes' sinf and cosf.
inline float wave(float argument, std::uint32_t quarters) {
  constexpr double round_magic = 0x1.8p52;
  const auto x = static_cast<double>(argument);
  const double shifted = std::fma(x, 0.63661977236758134308, round_magic), n = shifted - round_magic;
  const double exact = std::fma(n, -6.123233995736766036e-17, std::fma(n, -1.5707963267948965580, x));
  auto r = static_cast<float>(exact);
  r = r > 0.8f ? 0.8f : r;  // for x so large that it has no fraction
  r = r < -0.8f ? -0.8f : r;
  quarters += static_cast<std::uint32_t>(std::bit_cast<std::uint64_t>(shifted));
  const float z = r * r;
  float odd = -1.9515295891e-4f;
  odd = std::fma(odd, z, 8.3321608736e-3f);
  odd = std::fma(odd, z, -1.6666654611e-1f);
  odd = std::fma(odd * z, r, r);
  float even = 2.443315711809948e-5f;
  even = std::fma(even, z, -1.388731625493765e-3f);
  even = std::fma(even, z, 4.166664568298827e-2f);
  even = std::fma(even, z * z, std::fma(-0.5f, z, 1.0f));
  const std::uint32_t sign = (quarters & 2u) << 30;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>((quarters & 1u) != 0 ? even : odd) ^ sign);
}

}  // namespace detail

/// e^x within 1.5 ulp: 0 far below, infinity above 88.72, NaN for NaN. Results below 2^-126 are denormal, or
/// 0 where denormals are flushed.
inline float exponential(float x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const detail::Reduced at = detail::reduced_exponential(x);
  return detail::times_power_of_two(at.rest + 1.0f, at.power);
}

/// e^x - 1 within 3 ulp for x <= 0, near 0 too; 0 above.
inline float exponential_less_one(float x) {
  x = x > 0.0f ? 0.0f : x;
  x = x < -80.0f ? -80.0f : x;
  const detail::Reduced at = detail::reduced_exponential(x);
  const float power = power_of_two(at.power);
  return std::fma(at.rest, power, power - 1.0f);
}

/// The natural logarithm within 3 ulp, also of denormals unless they are flushed: -infinity at 0, NaN below.
inline float logarithm(float x) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const bool tiny = x < 0x1p-126f;
  const detail::Split at = detail::split(tiny ? x * 0x1p23f : x);
  const float n = static_cast<float>(at.power) - (tiny ? 23.0f : 0.0f);
  const float t = (at.mantissa - 1.0f) / (at.mantissa + 1.0f);
  const float near = 2.0f * t * detail::artanh_over(t * t);  // log(m) = 2 artanh((m - 1) / (m + 1))
  const float value = std::fma(n, 0.693359375f, std::fma(n, -2.12194440e-4f, near));
  const float outside = x == 0.0f ? -infinity : std::numeric_limits<float>::quiet_NaN();
  return x > 0.0f ? (x < infinity ? value : x) : outside;
}

/// log(1 + x) within 3 ulp for 0 <= x <= 1.
inline float logarithm_one_plus(float x) {
  const float t = x / (2.0f + x);
  return 2.0f * t * detail::artanh_over(t * t);
}

/// x^exponent within 2 ulp if that is a normal float, by a logarithm in double. NaN for negative x unless the
/// exponent is whole; other special cases as in C. Denormal x counts as 0.
inline float power(float x, float exponent) {
  const float size = std::fabs(x);
  const detail::Split at = detail::split(size);
  const double m = static_cast<double>(at.mantissa), t = (m - 1) / (m + 1);
  double log =
      std::fma(static_cast<double>(at.power), 0.69314718055994530942, 2 * t * detail::artanh_over(t * t));
  log = size < 0x1p-126f ? -1e30 : log;  // times an exponent of 0 it is 0
  log = size > 0x1.fffffep127f ? 1e30 : log;
  double whole = static_cast<double>(exponent) * log;
  whole = whole < -104 ? -104 : whole;
  whole = whole > 89 ? 89 : whole;
  constexpr double round_magic = 0x1.8p52;
  const double shifted = std::fma(whole, 1.4426950408889634074, round_magic), n = shifted - round_magic;
  const auto r = static_cast<float>(std::fma(n, -0.69314718055994530942, whole));
  const float value = detail::times_power_of_two(1.0f + detail::exponential_less_one_near_zero(r),
                                                 static_cast<std::int32_t>(static_cast<float>(n)));
  const float half = 0.5f * exponent;
  const float parity = std::trunc(half) == half ? 1.0f : -1.0f;
  const float sign = std::trunc(exponent) == exponent ? parity : std::numeric_limits<float>::quiet_NaN();
  const float sign_of_ends = std::trunc(exponent) == exponent ? parity : 1.0f;  // for -0 and -infinity
  float negative = size < 0x1p-126f ? sign_of_ends : sign;
  negative = size > 0x1.fffffep127f ? sign_of_ends : negative;
  const float signed_value = std::bit_cast<std::int32_t>(x) < 0 ? value * negative : value;
  const float of_nan = exponent != 0.0f ? x : 1.0f;
  return x != x ? of_nan : (x == 1.0f ? 1.0f : signed_value);
}

/// Within 2 ulp, and 1e-7 at their zeros, for |x| < 2^43; for larger |x| some number in [-1, 1], for infinity
/// NaN.
inline float sine(float x) { return detail::wave(x, 0); }
inline float cosine(float x) { return detail::wave(x, 1); }

/// Within 4 ulp: (1 - e^-2a) / (1 + e^-2a), a = |x|.
inline float hyperbolic_tangent(float x) {
  const float e = exponential_less_one(-2.0f * std::fabs(x));
  return std::copysign(e / (e + 2.0f), x);
}

#endif

/// The logistic function and its slope.
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

/// The normal distribution: density and distribution function.
struct Normal {
  float cdf;      ///< P(X <= x)
  float density;  ///< e^(-x^2 / 2) / sqrt(2 pi)
};

#ifdef __CUDA_ARCH__

__device__ inline Normal normal(float x) { return {::normcdff(x), 0.398942280f * ::expf(-0.5f * x * x)}; }
__device__ inline float error_function(float x) { return ::erff(x); }

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

/// erf(x) within 4 ulp: below 1 by x p(x^2) (degree 7, interpolated at Chebyshev nodes, within 4e-11), from
/// |x| = 1 on by the tail of the normal distribution.
inline float error_function(float x) {
  const float z = x * x;
  float p = -9.667044295e-6f;
  p = std::fma(p, z, 1.126595892e-4f);
  p = std::fma(p, z, -8.484080391e-4f);
  p = std::fma(p, z, 5.221031807e-3f);
  p = std::fma(p, z, -2.686543073e-2f);
  p = std::fma(p, z, 1.12837825e-1f);
  p = std::fma(p, z, -3.761263847e-1f);
  p = std::fma(p, z, 1.128379167f);
  const float far = std::fma(-2.0f, normal(-1.41421356f * std::fabs(x)).cdf, 1.0f);
  return std::fabs(x) < 1.0f ? x * p : std::copysign(far, x);
}

#endif

}  // namespace lockstep::ops
