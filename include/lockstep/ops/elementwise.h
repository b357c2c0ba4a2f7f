// Operations on elements: formulas (formulas.h) over any number of inputs, and operations that are not
// formulas of their inputs.
#pragma once

#include <optional>

#include "lockstep/ops/formulas.h"
#include "lockstep/ops/operation.h"

namespace lockstep::ops {

/// UsageError unless each input broadcasts to y by NumPy's rules. Inputs of y's shape must have its layout.
/// Others must be plain, and if y is in channel blocks, they must have one element.
void check_broadcast(const char* operation, std::span<const Tensor> inputs, const Tensor& y);
/// UsageError unless all inputs have y's shape, layout and type.
void check_alike(const char* operation, std::span<const Tensor> inputs, const Tensor& y);

/// Whether the inputs of a formula may have other shapes and types than its result.
template <class Formula>
consteval bool broadcasts() {
  if constexpr (requires { Formula::broadcasts; }) return Formula::broadcasts;
  return true;
}

/// y = formula(in...), element by element, in float32, rounded once to y's type; inputs of other shapes are
/// broadcast (or refused, see broadcasts()). y may be an input of its own shape and type. Padding lanes stay
/// zero if the formula of zeros is zero.
template <class Formula>
struct Map {
  static constexpr const char* name = Formula::name;
  Formula formula;
  std::array<Tensor, Formula::inputs> in;
  Tensor y;

  static void operands(auto& op, auto&& each) {
    each(ops::in("an input", op.in, floats).blocked(), out("y", op.y).blocked());
  }
  void check() const {
    if constexpr (broadcasts<Formula>())
      check_broadcast(name, in, y);
    else
      check_alike(name, in, y);
  }
};

// Shorthands. UsageError unless all shapes, types and layouts are equal, except where a comment says
// otherwise.
Map<Sum> add(const Tensor& a, const Tensor& b, const Tensor& y);
/// y = x plus `row` at each row; the n elements of `row` have the shape of the last dimensions of x.
Map<Sum> add_rows(const Tensor& x, const Tensor& row, const Tensor& y);
Map<Scaled> scale(const Tensor& x, float factor, const Tensor& y);
/// dx = factor * 2 (x - target); factor: one float32.
Map<LossSlope<SquaredError>> squared_error_backward(const Tensor& x, const Tensor& target,
                                                    const Tensor& factor, const Tensor& dx);

/// UsageError unless all inputs have the same shape and the total has shape [2].
void check_reduction(const char* operation, std::span<const Tensor> inputs, const Tensor& total);

/// total: float64 [2], the sum of term(in...) over all elements, and the number of elements, or `count`.
template <class Term>
struct Reduce {
  static constexpr const char* name = Term::name;
  Term term;
  std::array<Tensor, Term::inputs> in;
  Tensor total;
  std::optional<double> count = {};

  static void operands(auto& op, auto&& each) {
    each(ops::in("an input", op.in), out("the total", op.total, float64).per_part());
  }
  void check() const { check_reduction(name, in, total); }
};

/// The sum of squared differences, and the number of elements.
inline Reduce<SquaredDifference> squared_error(const Tensor& x, const Tensor& target, const Tensor& total) {
  return {{}, {x, target}, total};
}

/// The activation functions that other operations are fused with.
enum class Activation { relu, silu, gelu_erf, gelu_tanh };

/// y = activation(x). y may be x.
struct Activate {
  static constexpr const char* name = "activation";
  Activation kind = Activation::relu;
  Tensor x, y;

  static void operands(auto& op, auto&& each) { each(in("x", op.x).blocked(), out("y", op.y).blocked()); }
  void check() const;
};

/// dx = dy * activation'(x). dx may be dy. A ReLU's x may be its y.
struct ActivateBackward {
  static constexpr const char* name = "activation_backward";
  Activation kind = Activation::relu;
  Tensor x, dy, dx;

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x).blocked(), in("dy", op.dy).blocked(), out("dx", op.dx).blocked());
  }
  void check() const;
};

/// Sets all elements of `to`, of any type, to `value`; padding lanes to zero.
struct Fill {
  static constexpr const char* name = "fill";
  Tensor to;
  double value = 0;

  static void operands(auto& op, auto&& each) { each(out("the tensor", op.to, anything).blocked()); }
  void check() const;
};

/// `to` = `from` in another channel block (1: plain); padding lanes zero.
struct ToLayout {
  static constexpr const char* name = "to_layout";
  Tensor from, to;

  static void operands(auto& op, auto&& each) {
    each(in("from", op.from).blocked(), out("to", op.to).blocked());
  }
  void check() const;
};

/// y = scale * x + shift per channel: images to floats. x: uint8 [N, C, H, W]; scale, shift: [C].
struct NormalizeImages {
  static constexpr const char* name = "normalize_images";
  Tensor x, scale, shift, y;

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x, uint8), in("scale", op.scale, float32), in("shift", op.shift, float32),
         out("y", op.y).blocked());
  }
  void check() const;
};

/// row (+)= the sum of x's rows of row.numel() elements, in order.
struct SumRows {
  static constexpr const char* name = "sum_rows";
  Tensor x, row;
  bool accumulate = false;

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x), in_out("row", op.row, float32).per_part());
  }
  void check() const { (void)rows(); }
  std::int64_t rows() const;  ///< UsageError unless row.numel() divides x.numel()
};

/// into += x: one inner node of the reduction tree. Both are float32 or float64; a float64 x is rounded
/// before it is added to float32.
struct Accumulate {
  static constexpr const char* name = "accumulate";
  Tensor into, x;

  static void operands(auto& op, auto&& each) {
    each(in_out("the sum", op.into, anything).blocked(), in("x", op.x, anything).blocked());
  }
  void check() const;
};

}  // namespace lockstep::ops
