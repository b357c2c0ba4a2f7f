// Products of matrices: dense layers, and products over broadcast dimensions.
#pragma once

#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/operation.h"
#include "ops/strides.h"

namespace lockstep::ops {

// --- dense layers; x: [..., in], y: [..., out], of as many rows; weight: [out, in]; bias: [out]

/// What the shapes of a linear layer mean.
struct LinearSizes {
  std::int64_t rows, in, out;

  double flops() const;
  std::string text() const;
};

/// y = x weight' + bias
struct Linear {
  static constexpr const char* name = "linear";
  Tensor x, weight, bias, y;

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x), in("weight", op.weight, weights), in("bias", op.bias, floats).optional(),
         out("y", op.y));
  }
  LinearSizes sizes() const;
};

/// dx = dy weight
struct LinearBackwardInput {
  static constexpr const char* name = "linear_backward_input";
  Tensor dy, weight, dx;

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy), in("weight", op.weight, weights), out("dx", op.dx));
  }
  LinearSizes sizes() const;
};

/// dweight (+)= dy' x, and dbias, where there is one, (+)= the sum of dy's rows.
struct LinearBackwardWeight {
  static constexpr const char* name = "linear_backward_weight";
  Tensor x, dy, dweight;
  bool accumulate = false;
  Tensor dbias = {};

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x), in("dy", op.dy), in_out("dweight", op.dweight, float32),
         in_out("dbias", op.dbias, float32).optional());
  }
  LinearSizes sizes() const;
};

// Products fused with an activation: two operations, or one if the device can.

/// y = activation(before), before = x weight' + bias as it is stored, which is kept for the backward; none:
/// it is not. Only a GPU's GELU may see its sums before they are rounded.
struct LinearActivation {
  static constexpr const char* name = "linear_activation";
  Activation kind = Activation::relu;
  Tensor x, weight, bias, before, y;

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x), in("weight", op.weight, weights), in("bias", op.bias, floats).optional(),
         out("before", op.before).optional(), out("y", op.y));
  }
  LinearSizes sizes() const;
};

/// dx = (dy weight) * activation'(before): where a layer's x is the activation of `before`, the gradient of
/// that. A ReLU's may be x itself.
struct LinearBackwardInputActivation {
  static constexpr const char* name = "linear_backward_input_activation";
  Activation kind = Activation::relu;
  Tensor dy, weight, before, dx;

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy), in("weight", op.weight, weights), in("before", op.before), out("dx", op.dx));
  }
  LinearSizes sizes() const;
};

// --- products of matrices: one for each index of the dimensions before the last two, which broadcast by
// NumPy's rules

/// Which operand of a product is read as its transpose.
enum class Transposed { none, a, b };

/// Where the matrices of a product are.
struct MatMulSizes {
  std::int64_t m = 0, n = 0, k = 0;  ///< y: [m, n], a: [m, k] and b: [k, n], once transposed
  StridedDimensions<3> each = {};    ///< of a, b and y: one matrix of y for each element
  StridedDimensions<3> summed = {};  ///< of a, b and y: the products that a matrix of y is the sum of
  /// Whether the sums have no terms: the result is 0.
  bool sums_nothing() const { return k * summed.count() == 0; }
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
