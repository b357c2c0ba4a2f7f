// Sums with a fixed number of lanes: vectorised, and the same bits on every instruction set.
#pragma once

#include <cstdint>
#include <cstring>

namespace lockstep::kernels {

using Floats = float __attribute__((vector_size(32)));    // 8
using Doubles = double __attribute__((vector_size(32)));  // 4

inline Floats load_floats(const float* from) {
  Floats lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

inline void store_floats(float* to, Floats lanes) { std::memcpy(to, &lanes, sizeof lanes); }

inline float sum_of(Floats v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }
inline double sum_of(Doubles v) { return (v[0] + v[2]) + (v[1] + v[3]); }

/// The first n (< 8) floats; zeros behind them.
inline Floats load_first(const float* from, std::int64_t n) {
  Floats lanes = {};
  std::memcpy(&lanes, from, static_cast<std::size_t>(n) * sizeof(float));
  return lanes;
}

/// Sums over [0, n) of term(i) = Floats of elements i .. i + 7, in four groups of 8 lanes. tail(i, count)
/// gives the last, partial group with zeros in the lanes that do not exist.
template <class Term, class Tail>
float lane_sum(std::int64_t n, const Term& term, const Tail& tail) {
  Floats a = {}, b = {}, c = {}, d = {};
  std::int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    a += term(i);
    b += term(i + 8);
    c += term(i + 16);
    d += term(i + 24);
  }
  for (; i + 8 <= n; i += 8) a += term(i);
  if (i < n) b += tail(i, n - i);
  return sum_of((a + b) + (c + d));
}

inline float sum(const float* x, std::int64_t n) {
  return lane_sum(
      n, [x](std::int64_t i) { return load_floats(x + i); },
      [x](std::int64_t i, std::int64_t count) { return load_first(x + i, count); });
}

inline float dot(const float* x, const float* y, std::int64_t n) {
  return lane_sum(
      n, [=](std::int64_t i) { return load_floats(x + i) * load_floats(y + i); },
      [=](std::int64_t i, std::int64_t count) {
        return load_first(x + i, count) * load_first(y + i, count);
      });
}

/// Sum of (x - centre)^2.
inline float sum_of_squares_about(const float* x, float centre, std::int64_t n) {
  const auto squared = [centre](Floats v) {
    const Floats off = v - centre;
    return off * off;
  };
  return lane_sum(
      n, [=](std::int64_t i) { return squared(load_floats(x + i)); },
      [=](std::int64_t i, std::int64_t count) {
        Floats padded = load_first(x + i, count);
        for (std::int64_t lane = count; lane < 8; ++lane) padded[lane] = centre;
        return squared(padded);
      });
}

/// The largest of n > 0 elements. A NaN may be passed over.
inline float largest(const float* x, std::int64_t n) {
  if (n < 8) {
    float most = x[0];
    for (std::int64_t i = 1; i < n; ++i) most = x[i] > most ? x[i] : most;
    return most;
  }
  Floats most = load_floats(x + n - 8);  // covers the tail
  for (std::int64_t i = 0; i + 8 <= n; i += 8) {
    const Floats v = load_floats(x + i);
    most = v > most ? v : most;
  }
  float result = most[0];
  for (int lane = 1; lane < 8; ++lane) result = most[lane] > result ? most[lane] : result;
  return result;
}

}  // namespace lockstep::kernels
