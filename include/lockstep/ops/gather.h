// Indexing: elements along an axis, rows of a table.
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/ops/operation.h"

namespace lockstep::ops {

// --- errors in data; the texts are the same on every device

/// Index number `number` is out of range: a table has `extent` rows, or an axis `extent` positions.
[[noreturn]] inline void throw_index_outside(const char* operation, std::int64_t index, std::int64_t number,
                                             std::int64_t extent) {
  throw DataError("{}: index {} (number {}) is outside [0, {})", operation, index, number, extent);
}

/// x: [outer, extent, inner]; y: [outer, taken, inner]. by_element: one index for each element of y;
/// otherwise one for each of `taken`.
struct GatherSizes {
  std::int64_t outer = 1, extent = 1, taken = 1, inner = 1;
  bool by_element = false;

  /// The number of the index that selects an element of the result.
  std::int64_t index_of(std::int64_t o, std::int64_t i, std::int64_t c) const {
    return by_element ? (o * taken + i) * inner + c : i;
  }
};

/// y = x at the indices along an axis >= 0. indices: int64 [taken], or of y's shape. An index out of range
/// throws DataError with its value: at once, or on an asynchronous device at the next read.
struct Gather {
  static constexpr const char* name = "gather";
  Tensor x, indices;
  int axis = 0;
  Tensor y;
  const char* function = name;  ///< that errors in data name

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x), in("the indices", op.indices, int64), out("y", op.y));
  }
  GatherSizes sizes() const;
  Cost cost() const;
};

/// dx = the sums of dy over equal indices, in their order; zero where no index points.
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

/// y = a fold of x's rows over equal indices, in their order: row i of x [rows, ...] belongs to row
/// indices[i] of y [segments, ...], which is 0 where no index points. indices: int64 [rows], sorted or not.
/// An index out of range throws DataError, as that of Gather.
struct SegmentRows {
  Tensor x, indices, y;
  const char* function;  ///< that errors name

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x), in("the indices", op.indices, int64), out("y", op.y));
  }
  GatherSizes sizes() const;
};
/// The fold is the sum.
struct SegmentSum : SegmentRows {
  static constexpr const char* name = "segment_sum";
};
/// The fold is the largest element; NaN stays.
struct SegmentMax : SegmentRows {
  static constexpr const char* name = "segment_max";
};

/// y = the first lengths[n] steps of each sequence of x [N, T, ...], or only the last of these, and `value`
/// in the other steps, whatever x holds there. float32, bf16 or int64; y may be x. lengths: int64 [N]; one
/// outside [0, T] throws DataError, as an index of Gather.
struct KeepSteps {
  static constexpr const char* name = "keep_steps";
  Tensor x, lengths;
  double value = 0;
  bool last = false;  ///< keeps the last of the steps alone
  Tensor y;
  const char* function = name;  ///< that errors in data name

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x, anything), in("the lengths", op.lengths, int64), out("y", op.y, anything));
  }
  /// x: [sequences, steps, inner].
  struct Sizes {
    std::int64_t sequences, steps, inner;
  };
  Sizes sizes() const;
};

/// The sizes of an embedding.
struct TableSizes {
  std::int64_t rows, width, uses;
};

/// The rows of a table at the indices. An index out of range throws DataError with its value: at once, or on
/// an asynchronous device at the next read.
struct Embedding {
  static constexpr const char* name = "embedding";
  Tensor indices, weight, y;

  static void operands(auto& op, auto&& each) {
    each(in("the indices", op.indices, int64), in("the table", op.weight, float32).shared(), out("y", op.y));
  }
  TableSizes sizes() const;
  Cost cost() const;
};

/// Adds the rows of dy to the rows of dweight at the indices, in their order; without accumulate, dweight is
/// zeroed first.
struct EmbeddingBackward {
  static constexpr const char* name = "embedding_backward";
  Tensor dy, indices, dweight;
  bool accumulate = false;

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy), in("the indices", op.indices, int64),
         in_out("dweight", op.dweight, float32).per_part());
  }
  TableSizes sizes() const;
  Cost cost() const;
};

}  // namespace lockstep::ops
