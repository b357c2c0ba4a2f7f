// Products of matrices, and the products of a dense layer with their epilogues.
#pragma once

#include <optional>

#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/operation.h"
#include "ops/strides.h"

namespace lockstep::ops {

/// Which operand of a product is read as its transpose.
enum class Transposed { none, a, b };

/// The sizes of a product, and the places of its matrices.
struct MatMulSizes {
  std::int64_t m = 0, n = 0, k = 0;  ///< y: [m, n], a: [m, k] and b: [k, n], after transposition
  StridedDimensions<3> each = {};    ///< of a, b and y: one matrix of y for each element
  StridedDimensions<3> summed = {};  ///< of a, b and y: the products that a matrix of y sums
  bool one_matrix = false;           ///< b (y if a is transposed) has the rank of one matrix
  const char* remarks = "";          ///< the rest of text()
  /// Whether the sums have no terms: the result is 0.
  bool sums_nothing() const { return k * summed.count() == 0; }
  double flops() const;
  std::string text() const;
};

/// y (+)= a b. Dimensions before the last two broadcast by NumPy's rules. Those that y lacks, or has with
/// extent 1, are summed over, for the gradient of a broadcast operand. If b is one matrix, it multiplies all
/// rows of a as one matrix. If a is transposed and y is one matrix, all rows of a and of b are one matrix
/// each.
///
/// A product of one matrix may have an epilogue, which a device fuses if it can: a bias and an activation, or
/// the slope of an activation, if y is overwritten and a is not transposed; the gradient of a bias, if a is
/// transposed. Only a GPU's GELU may read the sums before they are rounded.
struct MatMul {
  static constexpr const char* name = "matmul";
  Tensor a, b;
  Transposed transposed = Transposed::none;
  Tensor y;                                   ///< of a's type, or float32
  bool accumulate = false;                    ///< float32 only
  Tensor bias = {};                           ///< [n]: y = a b + bias
  std::optional<Activation> activation = {};  ///< y = activation(a b + bias)
  Tensor before = {};     ///< receives the activation's input, for its backward; absent: not kept
  Tensor slope_at = {};   ///< if present, y = (a b) * activation'(slope_at). A ReLU's may be its output
  Tensor dbias = {};      ///< [m]: (+)= the sums of a's rows
  bool few_rows = false;  ///< a has so few rows that reading b costs most; the bits are others

  static void operands(auto& op, auto&& each) {
    // In parts, rows of a are multiplied by all of one matrix b, or the rows of both have one product a part.
    const bool sums_rows = op.transposed == Transposed::a && op.a.shape().rank() == 2;
    const bool one_b = op.transposed != Transposed::a && op.b.shape().rank() == 2;
    each(in("a", op.a), one_b ? in("b", op.b, weights).shared() : in("b", op.b, weights), y_of(op, sums_rows),
         in("bias", op.bias, floats).shared().optional(), out("before", op.before).optional(),
         in("slope_at", op.slope_at).optional(), in_out("dbias", op.dbias, float32).per_part().optional());
  }
  static auto y_of(auto& op, bool per_part) {
    const auto y = op.accumulate ? in_out("y", op.y, floats) : out("y", op.y, floats);
    return per_part ? y.per_part() : y;
  }
  MatMulSizes sizes() const;
};

// The products of a dense layer. x: [..., in]; y: [..., out], with as many rows; weight: [out, in]; bias:
// [out]

/// y = x weight' + bias, or its activation.
inline MatMul linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y,
                     std::optional<Activation> activation = {}, const Tensor& before = {}) {
  return {.a = x,
          .b = weight,
          .transposed = Transposed::b,
          .y = y,
          .bias = bias,
          .activation = activation,
          .before = before};
}

/// dx = dy weight, or, if x is the result of an activation, the gradient of its input.
inline MatMul linear_backward_input(const Tensor& dy, const Tensor& weight, const Tensor& dx,
                                    std::optional<Activation> activation = {}, const Tensor& slope_at = {}) {
  return {.a = dy, .b = weight, .y = dx, .activation = activation, .slope_at = slope_at};
}

/// dweight (+)= dy' x, and dbias, if present, (+)= the sum of dy's rows.
inline MatMul linear_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dweight,
                                     bool accumulate = false, const Tensor& dbias = {}) {
  return {
      .a = dy, .b = x, .transposed = Transposed::a, .y = dweight, .accumulate = accumulate, .dbias = dbias};
}

/// The shape of matmul(a, b). UsageError naming `function` unless the shapes fit.
Shape shape_of_product(const char* function, const Shape& a, const Shape& b);

}  // namespace lockstep::ops
