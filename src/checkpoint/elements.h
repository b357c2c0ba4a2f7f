// Private to the room: raw bytes as numbers, for reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "lockstep/tensor/half.h"

namespace lockstep::checkpoint {

/// IEEE half precision, which occurs in files of others only.
struct Float16 {
  std::uint16_t bits;
};

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

/// Calls use.template operator()<T>() with the element type.
template <class Use>
auto with_element_type(DType dtype, const Use& use) {
  switch (dtype) {
    case DType::float64:
      return use.template operator()<double>();
    case DType::bfloat16:
      return use.template operator()<BFloat16>();
    case DType::int64:
      return use.template operator()<std::int64_t>();
    case DType::int32:
      return use.template operator()<std::int32_t>();
    case DType::uint8:
      return use.template operator()<std::uint8_t>();
    case DType::float16:
      return use.template operator()<Float16>();
    case DType::float32:
      break;
  }
  return use.template operator()<float>();
}

}  // namespace lockstep::checkpoint
