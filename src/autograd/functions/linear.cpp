// Products of matrices, and the dense layer.
#include <algorithm>
#include <array>

#include "autograd/functions/support.h"
#include "ops/matmul.h"

namespace lockstep {
namespace {

void require_fit(const char* function, const Var& x, const Var& weight) {
  require_one_type(function, x, weight);
  if (x.shape().rank() >= 1 && weight.shape().rank() == 2 && x.shape()[-1] == weight.shape()[1]) return;
  throw UsageError("{}: an input of shape {} does not fit a weight of shape {}", function,
                   to_string(x.shape()), to_string(weight.shape()));
}

/// Memory for the input of an activation if its backward reads it. That of a ReLU reads y.
Tensor empty_preactivation(ops::Activation activation, const Tensor& y, Tape& tape) {
  if (activation == ops::Activation::relu || !tape.pass().record) return {};
  return empty_like(tape.backend(), y);
}

/// Gradients of a layer's weight and bias. dy: [rows, out].
void write_parameter_gradients(Tape& t, const Tensor& x, const Tensor& dy, const Var& weight,
                               const Var& bias) {
  kernels::Backend& backend = t.backend();
  if (weight.needs_gradient() && bias.needs_gradient()) {
    write_gradients(t, weight, bias, [&](const Tensor& dweight, const Tensor& dbias, bool accumulate) {
      backend.run(ops::LinearBackwardWeight{as_rows(x), dy, dweight, accumulate, dbias});
    });
    return;
  }
  t.write_gradient(weight, [&](const Tensor& dweight, bool accumulate) {
    backend.run(ops::LinearBackwardWeight{as_rows(x), dy, dweight, accumulate});
  });
  t.write_gradient(bias, [&](const Tensor& dbias, bool accumulate) {
    backend.run(ops::SumRows{dy, dbias, accumulate});
  });
}

void add_input_gradient(Tape& t, const Var& x, const Tensor& dy, const Var& weight) {
  add_new_gradient(t, x, [&](const Tensor& dx) {
    t.backend().run(ops::LinearBackwardInput{dy, weight.value(), as_rows(dx)});
  });
}

/// The gradients of a layer's input, weight and bias.
void write_layer_gradients(Tape& t, const Var& x, const Tensor& dy, const Var& weight, const Var& bias) {
  const kernels::Backend::SharedOperand shared(t.backend(), dy);
  write_parameter_gradients(t, x.value(), dy, weight, bias);
  add_input_gradient(t, x, dy, weight);
}

}  // namespace

Var matmul(const Var& a_given, const Var& b_given) {
  require_one_type("matmul", a_given, b_given);
  const Shape shape = ops::shape_of_product("matmul", a_given.shape(), b_given.shape());
  const Var a = plain(a_given), b = plain(b_given);
  const Tensor y = a.tape().backend().empty(shape, a.value().dtype());
  a.tape().backend().run(ops::MatMul{a.value(), b.value(), ops::Transposed::none, y});
  return a.tape().record(y, {&a, &b}, [a, b](Tape& t, const Tensor& dy) {
    const auto gradient = [&](const Var& of, const Tensor& left, const Tensor& right,
                              ops::Transposed transposed) {
      t.write_gradient(
          of,
          [&](const Tensor& sum, bool accumulate) {
            t.backend().run(ops::MatMul{left, right, transposed, sum, accumulate});
          },
          true);
    };
    gradient(a, dy, b.value(), ops::Transposed::b);
    gradient(b, a.value(), dy, ops::Transposed::a);
  });
}

Var linear(const Var& given, const Var& weight, const Var& bias) {
  const Var x = plain(given);
  require_fit("linear", x, weight);
  Tape& tape = x.tape();
  const Tensor y = tape.backend().empty(x.shape().with(-1, weight.shape()[0]), x.value().dtype());
  tape.backend().run(ops::Linear{as_rows(x.value()), weight.value(), bias.value(), as_rows(y)});
  return tape.record(y, {&x, &weight, &bias},
                     [x, weight, bias = bias.without_value()](Tape& t, const Tensor& dy) {
                       write_layer_gradients(t, x, as_rows(dy), weight, bias);
                     });
}

Var linear(const Var& given, const Var& weight, const Var& bias, ops::Activation activation) {
  const Var x = plain(given);
  require_fit("linear", x, weight);
  Tape& tape = x.tape();
  const Tensor y = tape.backend().empty(x.shape().with(-1, weight.shape()[0]), x.value().dtype());
  const Tensor before = empty_preactivation(activation, y, tape);
  tape.backend().run(ops::LinearActivation{activation, x.value(), weight.value(), bias.value(), before, y});
  return tape.record(y, {&x, &weight, &bias},
                     [x, weight, bias = bias.without_value(), activation, at = before ? before : y](
                         Tape& t, const Tensor& dy) {
                       const Tensor upstream = empty_like(t.backend(), dy);
                       t.backend().run(ops::ActivateBackward{activation, at, dy, upstream});
                       write_layer_gradients(t, x, as_rows(upstream), weight, bias);
                     });
}

Var feed_forward(const Var& given, const Var& weight_in, const Var& bias_in, ops::Activation activation,
                 const Var& weight_out, const Var& bias_out) {
  const Var x = plain(given);
  require_fit("feed_forward", x, weight_in);
  if (weight_out.shape().rank() != 2 || weight_out.shape()[1] != weight_in.shape()[0])
    throw UsageError("feed_forward: weights of shape {} and {} do not follow each other",
                     to_string(weight_in.shape()), to_string(weight_out.shape()));
  Tape& tape = x.tape();
  kernels::Backend& backend = tape.backend();
  const Tensor hidden = backend.empty(x.shape().with(-1, weight_in.shape()[0]), x.value().dtype());
  const Tensor before = empty_preactivation(activation, hidden, tape);
  backend.run(
      ops::LinearActivation{activation, x.value(), weight_in.value(), bias_in.value(), before, hidden});
  const Tensor y = backend.empty(x.shape().with(-1, weight_out.shape()[0]), x.value().dtype());
  backend.run(ops::Linear{hidden, weight_out.value(), bias_out.value(), y});
  return tape.record(
      y, {&x, &weight_in, &bias_in, &weight_out, &bias_out},
      [x, weight_in, bias_in = bias_in.without_value(), weight_out, bias_out = bias_out.without_value(),
       activation, hidden, at = before ? before : hidden](Tape& t, const Tensor& dy) {
        const Tensor upstream = empty_like(t.backend(), hidden);
        {
          const kernels::Backend::SharedOperand shared(t.backend(), dy);
          write_parameter_gradients(t, hidden, as_rows(dy), weight_out, bias_out);
          t.backend().run(
              ops::LinearBackwardInputActivation{activation, dy, weight_out.value(), at, upstream});
        }
        write_layer_gradients(t, x, as_rows(upstream), weight_in, bias_in);
      });
}

}  // namespace lockstep
