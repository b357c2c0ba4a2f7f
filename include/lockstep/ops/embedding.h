// Rows of a table by number. indices: int64, any shape; weight: [rows, width]; y: [indices..., width].
#pragma once

#include "lockstep/ops/operation.h"

namespace lockstep::ops {

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
};

}  // namespace lockstep::ops
