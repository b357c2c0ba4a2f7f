// Sixteen-bit floats on the wire between nodes: rounding, and back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/tensor/half.h"

namespace lockstep::comm {

/// True if sums of `dtype` are rounded on a wire of type `wire`.
constexpr bool narrows(DType wire, DType dtype) { return dtype == DType::float32 && wire != DType::float32; }

/// Rounds `count` float32 values to `wire` (bfloat16 or float16). The result may be the first half of their
/// own memory.
void narrow(const std::byte* values, std::byte* narrowed, std::int64_t count, DType wire);
/// Rounds them where they are.
void round_to(DType wire, std::byte* values, std::int64_t count);
/// The inverse of narrow. The memory may be the same if the narrow values fill its second half.
void widen(const std::byte* narrowed, std::byte* values, std::int64_t count, DType wire);

}  // namespace lockstep::comm
