// StridedDimensions: a loop over the elements of several tensors at once.
#pragma once

#include <array>
#include <cstdint>

#include "lockstep/base/shape.h"
#include "lockstep/ops/math.h"

namespace lockstep::ops {

/// Dimensions, innermost first, with the strides of each operand in elements. Neighbours that are contiguous
/// in every operand are one dimension.
template <std::size_t operands>
struct StridedDimensions {
  using Offsets = std::array<std::int64_t, operands>;  ///< one for each operand

  int rank = 0;
  std::int64_t size[Shape::max_rank] = {};  ///< extents, innermost first
  Offsets stride[Shape::max_rank] = {};     ///< in elements; 0 where an operand is repeated

  /// The next dimension outwards.
  void add(std::int64_t extent, const Offsets& step) {
    if (extent == 1) return;
    bool continues = rank > 0;
    for (std::size_t o = 0; continues && o < operands; ++o)
      continues = step[o] == stride[rank - 1][o] * size[rank - 1];
    if (continues) {
      size[rank - 1] *= extent;
    } else {
      size[rank] = extent;
      stride[rank++] = step;
    }
  }

  /// The same loop without one of its dimensions.
  StridedDimensions without(int dimension) const {
    StridedDimensions rest;
    for (int d = 0; d < rank; ++d) {
      if (d == dimension) continue;
      rest.size[rest.rank] = size[d];
      rest.stride[rest.rank++] = stride[d];
    }
    return rest;
  }

  LOCKSTEP_ON_ANY_DEVICE std::int64_t count() const {
    std::int64_t product = 1;
    for (int d = 0; d < rank; ++d) product *= size[d];
    return product;
  }

  /// The offsets of element number i.
  LOCKSTEP_ON_ANY_DEVICE Offsets offsets(std::int64_t i) const {
    Offsets at{};
#ifdef __CUDA_ARCH__
#pragma unroll 1  // divisions take many instructions on a GPU
#endif
    for (int d = 0; d < rank; ++d) {
      const bool last = d + 1 == rank;
      const std::int64_t index = last ? i : i % size[d];
      for (std::size_t o = 0; o < operands; ++o) at[o] += index * stride[d][o];
      if (!last) i /= size[d];
    }
    return at;
  }
};

}  // namespace lockstep::ops
