// Copies between strided views of tensors: permute, concat, narrow, flip and expand are such copies.
#pragma once

#include "lockstep/ops/operation.h"
#include "ops/strides.h"

namespace lockstep::ops {

/// The elements of a plain tensor in another shape: element [i0, i1 ...] is element offset + i0 stride[0] +
/// i1 stride[1] ... of the tensor. The functions return other views of the same memory. Their axes are >= 0
/// and not checked: StridedCopy checks the result.
struct StridedView {
  Tensor tensor;
  Shape shape;
  std::int64_t offset = 0;
  std::array<std::int64_t, Shape::max_rank> stride{};

  /// The whole tensor, in order.
  explicit StridedView(const Tensor& whole) : StridedView(whole, whole.shape()) {}
  /// A whole tensor of this shape, which of() supplies later.
  explicit StridedView(const Shape& whole) : StridedView({}, whole) {}

  /// The same view of another tensor of that shape.
  StridedView of(const Tensor& other) const;
  /// [start, start + length) along an axis; no copy.
  StridedView narrowed(int axis, std::int64_t start, std::int64_t length) const;
  /// Dimension d is `order[d]` of this one.
  StridedView permuted(std::span<const int> order) const;
  StridedView flipped(int axis) const;  ///< in reverse order along an axis; no copy
  /// `count` such views as a first axis, the next one `step` elements further on.
  StridedView repeated(std::int64_t count, std::int64_t step) const;
  /// Broadcast to a shape by NumPy's rules.
  StridedView expanded(const Shape& to) const;

 private:
  StridedView(const Tensor& whole, const Shape& whole_shape);
};

/// The dimensions of a copy and their strides in `from` and in `to`, the smallest stride in `to` first. There
/// is always at least one dimension.
using CopyDimensions = StridedDimensions<2>;

/// to (+)= from, element by element; the rest of `to` stays. Equal shapes; elements of `to` do not share
/// memory.
struct StridedCopy {
  static constexpr const char* name = "strided_copy";
  StridedView from, to;
  bool accumulate = false;

  static void operands(auto& op, auto&& each) {
    each(in("from", op.from.tensor), in_out("to", op.to.tensor));
  }
  /// UsageError unless both views are inside their tensors.
  CopyDimensions sizes() const;
  /// The dimension along which `from` is contiguous, if `to` is along dimension 0 and `from` is not: rows of
  /// the two sides cross, and tiles of both dimensions are fast. 0: there is no such dimension.
  static int tiled_dimension(const CopyDimensions& dimensions);
  Cost cost() const;
};

}  // namespace lockstep::ops
