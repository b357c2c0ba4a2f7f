// Elements of an axis by number.
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/ops/operation.h"

namespace lockstep::ops {

// --- errors in data; the texts are the same on every device

/// Index number `number` is outside the `extent` rows of a table or positions of an axis.
[[noreturn]] inline void throw_index_outside(const char* operation, std::int64_t index, std::int64_t number,
                                             std::int64_t extent) {
  throw DataError("{}: index {} (number {}) is outside [0, {})", operation, index, number, extent);
}

/// x: [outer, extent, inner]; y: [outer, taken, inner]. There is an index for each element of y, or, if not
/// by_element, one for each of `taken`.
struct GatherSizes {
  std::int64_t outer = 1, extent = 1, taken = 1, inner = 1;
  bool by_element = false;

  /// Where in a table an element of the result comes from.
  std::int64_t index_of(std::int64_t o, std::int64_t i, std::int64_t c) const {
    return by_element ? (o * taken + i) * inner + c : i;
  }
};

/// y = x at the indices along an axis, which is counted from the first: indices: int64 [taken], or of y's
/// shape. An index outside throws DataError with its value: at once, or from a device that runs behind at the
/// next read.
struct Gather {
  static constexpr const char* name = "gather";
  Tensor x, indices;
  int axis = 0;
  Tensor y;

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x), in("the indices", op.indices, int64), out("y", op.y));
  }
  GatherSizes sizes() const;
  Cost cost() const;
};

/// dx = the sums of dy at equal indices, in their order; zero where there are none.
struct GatherBackward {
  static constexpr const char* name = "gather_backward";
  Tensor dy, indices;
  int axis = 0;
  Tensor dx;

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy), in("the indices", op.indices, int64), out("dx", op.dx));
  }
  GatherSizes sizes() const;
};

/// What the shapes of a table mean.
struct TableSizes {
  std::int64_t rows, width, uses;
};

/// An index outside throws DataError with its value: at once, or from a device that runs behind at the next
/// read.
struct Embedding {
  static constexpr const char* name = "embedding";
  Tensor indices, weight, y;

  static void operands(auto& op, auto&& each) {
    each(in("the indices", op.indices, int64), in("the table", op.weight, float32), out("y", op.y));
  }
  TableSizes sizes() const;
  Cost cost() const;
};

/// Rows of dweight (+)= those of dy, in the order of the indices; without accumulate the whole of dweight is
/// zeroed first.
struct EmbeddingBackward {
  static constexpr const char* name = "embedding_backward";
  Tensor dy, indices, dweight;
  bool accumulate = false;

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy), in("the indices", op.indices, int64), in_out("dweight", op.dweight, float32));
  }
  TableSizes sizes() const;
  Cost cost() const;
};

}  // namespace lockstep::ops
