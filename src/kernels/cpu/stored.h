// Elements as they are stored, float32 or bf16, read and written as float32: one at a time, in loops that
// vectorise, or eight at once.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/simd.h"
#include "lockstep/tensor/dtype.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::kernels {

inline float widened(float stored) { return stored; }
inline float widened(double stored) { return static_cast<float>(stored); }
inline float widened(std::int64_t stored) { return static_cast<float>(stored); }
inline float widened(std::uint8_t stored) { return stored; }
inline float widened(BFloat16 stored) { return from_bfloat16_bits(stored.bits); }

inline void put(float& to, float value) { to = value; }
inline void put(BFloat16& to, float value) { to.bits = bfloat16_bits(value); }

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
    return widened(*from);
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

inline void store(BFloat16* to, float value) { put(*to, value); }

inline void store(BFloat16* to, Floats values) {  // as bfloat16_bits()
  const auto bits = reinterpret_cast<Words>(values);
  const Words rounded = bits + 0x7fffu + ((bits >> 16) & 1u), quiet = bits | 0x400000u;
  const Halves halves = __builtin_convertvector((values != values ? quiet : rounded) >> 16, Halves);
  std::memcpy(to, &halves, sizeof halves);
}

/// body(a BFloat16 or a float), by what the tensor stores.
template <class Body>
void by_type_of(const Tensor& tensor, const Body& body) {
  if (tensor && tensor.dtype() == DType::bfloat16) {
    body(BFloat16{});
  } else {
    body(float{});
  }
}

}  // namespace lockstep::kernels
