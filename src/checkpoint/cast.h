// Private to the room: elements of one type as those of another, and matrices transposed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/hdf5/element_type.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::checkpoint {

/// Converts `count` elements. Floats are rounded to the nearest, ties to even (float64 to 16 bits by way of
/// float32); a NaN stays one. False if a finite number became infinite: the result is then of no use.
/// UsageError for texts and others, and for floats that would become integers.
[[nodiscard]] bool cast_elements(hdf5::ElementType from, const std::byte* in, DType to, std::byte* out,
                                 std::int64_t count);

/// out[c][r] = in[r][c]; the memories do not overlap.
void transpose_elements(const std::byte* in, std::int64_t rows, std::int64_t columns,
                        std::size_t element_bytes, std::byte* out);

}  // namespace lockstep::checkpoint
