// Casts of float32 arrays to the 16-bit communication dtypes and back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/tensor/dtype.h"

namespace lockstep::comm {

/// True if sums of `dtype` are rounded when they are sent as `comm_dtype`.
constexpr bool needs_cast(DType comm_dtype, DType dtype) {
  return dtype == DType::float32 && comm_dtype != DType::float32;
}

/// Rounds `count` float32 values to `comm_dtype` (bfloat16 or float16). The result may overwrite
/// the first half of their memory.
void cast_to(const std::byte* values, std::byte* cast, std::int64_t count, DType comm_dtype);
/// Rounds float32 values in place.
void round_to(DType comm_dtype, std::byte* values, std::int64_t count);
/// The inverse of cast_to. The cast values may fill the second half of the memory of the result.
void cast_from(const std::byte* cast, std::byte* values, std::int64_t count, DType comm_dtype);

}  // namespace lockstep::comm
