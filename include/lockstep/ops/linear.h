// Dense layers. x: [..., in], y: [..., out], of as many rows; weight: [out, in]; bias: [out].
#pragma once

#include "lockstep/ops/elementwise.h"

namespace lockstep::ops {

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
    each(in("x", op.x), in("weight", op.weight, weights), in("bias", op.bias, float32).optional(),
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

// Products with what is next to them: one operation after the other, or in one where a device can.

/// y = activation(before), before = x weight' + bias as it is stored, which is kept for the backward; none:
/// it is not. Only a GPU's GELU may see its sums before they are rounded.
struct LinearActivation {
  static constexpr const char* name = "linear_activation";
  Activation kind = Activation::relu;
  Tensor x, weight, bias, before, y;

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x), in("weight", op.weight, weights), in("bias", op.bias, float32).optional(),
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

}  // namespace lockstep::ops
