// Vectors of elements: loads and stores of float32 and bf16, and sums with a fixed number of lanes, which
// have the same bits on every instruction set.
#pragma once

#include <cstdint>
#include <cstring>

#include "lockstep/tensor/dtype.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::kernels {

using Floats = float __attribute__((vector_size(32)));    // 8
using Doubles = double __attribute__((vector_size(32)));  // 4

// --- stored elements, float32 or bf16, are read and written as float32

inline float to_float(float stored) { return stored; }
inline float to_float(double stored) { return static_cast<float>(stored); }
inline float to_float(std::int64_t stored) { return static_cast<float>(stored); }
inline float to_float(std::int32_t stored) { return static_cast<float>(stored); }
inline float to_float(std::uint8_t stored) { return stored; }
inline float to_float(BFloat16 stored) { return from_bfloat16_bits(stored.bits); }

inline void store(float& to, float value) { to = value; }
inline void store(BFloat16& to, float value) { to.bits = bfloat16_bits(value); }

/// T: float or Floats.
template <class T>
T load(const float* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

using Halves = std::uint16_t __attribute__((vector_size(16)));  // 8, as Floats
using Words = std::uint32_t __attribute__((vector_size(32)));

template <class T>
T load(const BFloat16* from) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return to_float(*from);
  } else {
    Halves bits;
    std::memcpy(&bits, from, sizeof bits);
    return reinterpret_cast<Floats>(__builtin_convertvector(bits, Words) << 16);
  }
}

template <class T>
void store(float* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

inline void store(BFloat16* to, float value) { store(*to, value); }

inline void store(BFloat16* to, Floats values) {  // as bfloat16_bits()
  const auto bits = reinterpret_cast<Words>(values);
  const Words rounded = bits + 0x7fffu + ((bits >> 16) & 1u), quiet = bits | 0x400000u;
  const Halves halves = __builtin_convertvector((values != values ? quiet : rounded) >> 16, Halves);
  std::memcpy(to, &halves, sizeof halves);
}

/// Calls body(a BFloat16 or a float), by the tensor's type.
template <class Body>
void by_type_of(const Tensor& tensor, const Body& body) {
  if (tensor && tensor.dtype() == DType::bfloat16) {
    body(BFloat16{});
  } else {
    body(float{});
  }
}

// --- sums and transposes

inline float sum_of(Floats v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }
inline double sum_of(Doubles v) { return (v[0] + v[2]) + (v[1] + v[3]); }

/// The first n (< 8) floats, then `beyond` in the other lanes.
inline Floats load_first(const float* from, std::int64_t n, float beyond) {
  Floats lanes = Floats{} + beyond;
  std::memcpy(&lanes, from, static_cast<std::size_t>(n) * sizeof(float));
  return lanes;
}
inline Floats load_first(const BFloat16* from, std::int64_t n, float beyond) {
  float floats[8];
  for (int i = 0; i < 8; ++i) floats[i] = i < n ? to_float(from[i]) : beyond;
  return load<Floats>(floats);
}

/// An 8 x 8 block, row i at from + i * from_stride, to its transpose.
inline void transpose_block(const float* from, std::int64_t from_stride, float* to, std::int64_t to_stride) {
  Floats row[8], pair[8], quad[8];
  for (int i = 0; i < 8; ++i) row[i] = load<Floats>(from + i * from_stride);
  for (int i = 0; i < 8; i += 2) {
    pair[i] = __builtin_shufflevector(row[i], row[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pair[i + 1] = __builtin_shufflevector(row[i], row[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      quad[i + 2 * j] = __builtin_shufflevector(pair[i + j], pair[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      quad[i + 2 * j + 1] = __builtin_shufflevector(pair[i + j], pair[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    store(to + i * to_stride, __builtin_shufflevector(quad[i], quad[i + 4], 0, 1, 2, 3, 8, 9, 10, 11));
    store(to + (i + 4) * to_stride,
          __builtin_shufflevector(quad[i], quad[i + 4], 4, 5, 6, 7, 12, 13, 14, 15));
  }
}

/// A matrix [rows, columns], rows `from_stride` apart, to its transpose.
inline void transpose(const float* from, std::int64_t from_stride, std::int64_t rows, std::int64_t columns,
                      float* to, std::int64_t to_stride) {
  const std::int64_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
  for (std::int64_t r = 0; r < whole_rows; r += 8) {
    for (std::int64_t c = 0; c < whole_columns; c += 8)
      transpose_block(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = r < whole_rows ? whole_columns : 0; c < columns; ++c)
      to[c * to_stride + r] = from[r * from_stride + c];
  }
}

/// Sums over [0, n) of term(load), in four groups of 8 lanes: load(x) returns 8 elements of a row x, with the
/// same numbers for all rows; for the last, partial group, load(x, value) has the value in the lanes that do
/// not exist.
template <class Term>
float lane_sum(std::int64_t n, const Term& term) {
  const auto at = [&](std::int64_t i) {
    return term([i](const auto* x, float = 0) { return load<Floats>(x + i); });
  };
  Floats a = {}, b = {}, c = {}, d = {};
  std::int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    a += at(i);
    b += at(i + 8);
    c += at(i + 16);
    d += at(i + 24);
  }
  for (; i + 8 <= n; i += 8) a += at(i);
  if (i < n) b += term([=](const auto* x, float beyond = 0) { return load_first(x + i, n - i, beyond); });
  return sum_of((a + b) + (c + d));
}

inline float sum(const float* x, std::int64_t n) {
  return lane_sum(n, [x](const auto& load) { return load(x); });
}

/// X, Y: float or BFloat16.
template <class X, class Y>
float dot(const X* x, const Y* y, std::int64_t n) {
  return lane_sum(n, [=](const auto& load) { return load(x) * load(y); });
}

/// Sum of (x - centre)^2.
inline float sum_of_squares_about(const float* x, float centre, std::int64_t n) {
  return lane_sum(n, [=](const auto& load) {
    const Floats off = load(x, centre) - centre;
    return off * off;
  });
}

/// The largest of n > 0 elements. A NaN may be ignored.
inline float largest(const float* x, std::int64_t n) {
  if (n < 8) {
    float max = x[0];
    for (std::int64_t i = 1; i < n; ++i) max = x[i] > max ? x[i] : max;
    return max;
  }
  Floats max = load<Floats>(x + n - 8);  // covers the tail
  for (std::int64_t i = 0; i + 8 <= n; i += 8) {
    const Floats v = load<Floats>(x + i);
    max = v > max ? v : max;
  }
  float result = max[0];
  for (int lane = 1; lane < 8; ++lane) result = max[lane] > result ? max[lane] : result;
  return result;
}

}  // namespace lockstep::kernels
