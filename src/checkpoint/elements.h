// Private to the module: raw bytes as elements of a DType: casts, transposes, checks for finite numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/tensor/dtype.h"
#include "tensor/element_types.h"

namespace lockstep::checkpoint {

template <class T>
T element_at(std::span<const std::byte> bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

inline double as_double(BFloat16 value) { return from_bfloat16_bits(value.bits); }
inline double as_double(Float16 value) { return from_float16_bits(value.bits); }
template <class T>
double as_double(T value) {
  return static_cast<double>(value);
}

/// Casts `count` elements. Floats are rounded to nearest, ties to even (float64 to 16 bits through float32);
/// a NaN stays NaN. False if a number is beyond the target's range: the result is then invalid. UsageError
/// for floats to integers.
[[nodiscard]] bool cast_elements(DType from, const std::byte* in, DType to, std::byte* out,
                                 std::int64_t count);

/// out[c][r] = in[r][c]; the memories do not overlap.
void transpose_elements(const std::byte* in, std::int64_t rows, std::int64_t columns,
                        std::size_t element_bytes, std::byte* out);

/// True if all elements are finite; always for integers. As fast as reading from a cache.
bool all_finite(std::span<const std::byte> bytes, DType dtype);

/// "fc.weight (2 of 80), fc.bias (1 of 10)", with two dozen names at most; empty if all numbers are finite.
std::string not_finite_in(std::span<const NamedTensor> tensors);

}  // namespace lockstep::checkpoint
