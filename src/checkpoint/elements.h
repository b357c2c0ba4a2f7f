// Private to the room: raw bytes as numbers, for reports.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>

#include "lockstep/tensor/dtype.h"

namespace lockstep::checkpoint {

template <class T>
T element_at(std::span<const std::byte> bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

inline double as_double(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
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
    case DType::float32:
    case DType::float16:  // a type of the wire: no tensor is made of it
      break;
  }
  return use.template operator()<float>();
}

}  // namespace lockstep::checkpoint
