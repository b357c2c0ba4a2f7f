// Sixteen-bit floats on the wire between nodes: rounding, and back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/tensor/dtype.h"

namespace lockstep::comm {

/// True if sums of `dtype` are rounded on a wire of type `comm_dtype`.
constexpr bool needs_cast(DType comm_dtype, DType dtype) {
  return dtype == DType::float32 && comm_dtype != DType::float32;
}

/// Rounds `count` float32 values to `comm_dtype` (bfloat16 or float16). The result may be the first half of
/// their own memory.
void cast_to(const std::byte* values, std::byte* cast, std::int64_t count, DType comm_dtype);
/// Rounds them where they are.
void round_to(DType comm_dtype, std::byte* values, std::int64_t count);
/// The inverse of narrow. The memory may be the same if the narrow values fill its second half.
void cast_from(const std::byte* cast, std::byte* values, std::int64_t count, DType comm_dtype);

}  // namespace lockstep::comm
