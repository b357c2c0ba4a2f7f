// Products of matrices: one for each place of the dimensions before the last two, which broadcast by NumPy's
// rules.
#pragma once

#include "lockstep/ops/operation.h"

namespace lockstep::ops {

/// Which operand of a product is read as its transpose.
enum class Transposed { none, a, b };

/// Where the matrices of a product are.
struct MatMulSizes {
  /// A dimension: how many places, and the elements from one to the next in each operand.
  struct Dimension {
    std::int64_t extent = 1, a = 0, b = 0, y = 0;
  };
  struct Dimensions {
    std::array<Dimension, Shape::max_rank> dimension;
    int count = 0;

    std::int64_t places() const;
    /// The elements before a place, numbered with the last dimension fastest. The extent is of no meaning.
    Dimension at(std::int64_t place) const;
    void append(const Dimension& next);  ///< as part of the last one where that is the same
  };

  std::int64_t m = 0, n = 0, k = 0;  ///< y: [m, n], a: [m, k] and b: [k, n], once transposed
  Dimensions each = {};              ///< a matrix of y for each place
  Dimensions summed = {};            ///< and what it is the sum of

  bool sums_nothing() const { return k * summed.places() == 0; }
  double flops() const;
  std::string text() const;
};

/// y (+)= a b. Dimensions before the last two that y lacks, or has once, are summed over: the gradient of an
/// operand that was broadcast. Where b is one matrix without such dimensions, it multiplies all rows of a as
/// one matrix; so do all rows of a and b where a is transposed and y is one matrix.
struct MatMul {
  static constexpr const char* name = "matmul";
  Tensor a, b;
  Transposed transposed = Transposed::none;
  Tensor y;                 ///< of a's type, or float32
  bool accumulate = false;  ///< float32 only

  static void operands(auto& op, auto&& each) {
    each(in("a", op.a), in("b", op.b, weights), in_out("y", op.y, floats));
  }
  MatMulSizes sizes() const;
};

/// The shape of matmul(a, b). UsageError naming `function` unless the shapes fit.
Shape shape_of_product(const char* function, const Shape& a, const Shape& b);

}  // namespace lockstep::ops
