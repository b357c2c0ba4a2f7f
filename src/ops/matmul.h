// Products of matrices, and what a dense layer does with them in one go.
#pragma once

#include <optional>

#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/operation.h"
#include "ops/strides.h"

namespace lockstep::ops {

/// Which operand of a product is read as its transpose.
enum class Transposed { none, a, b };

/// Where the matrices of a product are.
struct MatMulSizes {
  std::int64_t m = 0, n = 0, k = 0;  ///< y: [m, n], a: [m, k] and b: [k, n], once transposed
  StridedDimensions<3> each = {};    ///< of a, b and y: one matrix of y for each element
  StridedDimensions<3> summed = {};  ///< of a, b and y: the products that a matrix of y is the sum of
  bool one_matrix = false;           ///< b, or y where a is transposed, is a matrix by its rank
  const char* remarks = "";          ///< the rest of text()
  /// Whether the sums have no terms: the result is 0.
  bool sums_nothing() const { return k * summed.count() == 0; }
  double flops() const;
  std::string text() const;
};

/// y (+)= a b. Dimensions before the last two broadcast by NumPy's rules. Those that y lacks, or has once,
/// are summed over: the gradient of an operand that was broadcast. Where b is one matrix without such
/// dimensions, it multiplies all rows of a as one matrix; so do all rows of a and b where a is transposed and
/// y is one matrix.
///
/// A product of one matrix may have an epilogue, which a device fuses if it can: a bias and an activation, or
/// the slope of an activation, where y is overwritten and a is not transposed; the gradient of a bias, where
/// a is. Only a GPU's GELU may see the sums before they are rounded.
struct MatMul {
  static constexpr const char* name = "matmul";
  Tensor a, b;
  Transposed transposed = Transposed::none;
  Tensor y;                                   ///< of a's type, or float32
  bool accumulate = false;                    ///< float32 only
  Tensor bias = {};                           ///< [n]: y = a b + bias
  std::optional<Activation> activation = {};  ///< y = activation(a b + bias)
  Tensor before = {};    ///< becomes what the activation is of, which its backward reads; none: not kept
  Tensor slope_at = {};  ///< with it, y = (a b) * activation'(slope_at). A ReLU's may be its output
  Tensor dbias = {};     ///< [m]: (+)= the sums of a's rows

  static void operands(auto& op, auto&& each) {
    each(in("a", op.a), in("b", op.b, weights),
         op.accumulate ? in_out("y", op.y, floats) : out("y", op.y, floats),
         in("bias", op.bias, floats).optional(), out("before", op.before).optional(),
         in("slope_at", op.slope_at).optional(), in_out("dbias", op.dbias, float32).optional());
  }
  MatMulSizes sizes() const;
};

// Those of a dense layer; x: [..., in], y: [..., out], of as many rows; weight: [out, in]; bias: [out]

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

/// dx = dy weight, or, where x is an activation, the gradient of what that is of.
inline MatMul linear_backward_input(const Tensor& dy, const Tensor& weight, const Tensor& dx,
                                    std::optional<Activation> activation = {}, const Tensor& slope_at = {}) {
  return {.a = dy, .b = weight, .y = dx, .activation = activation, .slope_at = slope_at};
}

/// dweight (+)= dy' x, and dbias, where there is one, (+)= the sum of dy's rows.
inline MatMul linear_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dweight,
                                     bool accumulate = false, const Tensor& dbias = {}) {
  return {
      .a = dy, .b = x, .transposed = Transposed::a, .y = dweight, .accumulate = accumulate, .dbias = dbias};
}

/// The shape of matmul(a, b). UsageError naming `function` unless the shapes fit.
Shape shape_of_product(const char* function, const Shape& a, const Shape& b);

}  // namespace lockstep::ops
