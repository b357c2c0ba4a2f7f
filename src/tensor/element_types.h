// Dispatch over element types.
#pragma once

#include <cstdint>

#include "lockstep/tensor/dtype.h"

namespace lockstep {

/// Calls use.template operator()<T>() with the element type.
template <class Use>
auto with_element_type(DType dtype, const Use& use) {
  switch (dtype) {
    case DType::bfloat16:
      return use.template operator()<BFloat16>();
    case DType::float16:
      return use.template operator()<Float16>();
    case DType::float64:
      return use.template operator()<double>();
    case DType::int64:
      return use.template operator()<std::int64_t>();
    case DType::int32:
      return use.template operator()<std::int32_t>();
    case DType::uint8:
      return use.template operator()<std::uint8_t>();
    case DType::int16:
      return use.template operator()<std::int16_t>();
    case DType::int8:
      return use.template operator()<std::int8_t>();
    case DType::uint64:
      return use.template operator()<std::uint64_t>();
    case DType::uint32:
      return use.template operator()<std::uint32_t>();
    case DType::uint16:
      return use.template operator()<std::uint16_t>();
    case DType::float32:
      break;
  }
  return use.template operator()<float>();
}

}  // namespace lockstep
