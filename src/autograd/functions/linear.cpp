// Products of matrices, and the dense layer.
#include <algorithm>
#include <array>
#include <optional>

#include "autograd/functions/support.h"
#include "ops/matmul.h"

namespace lockstep {
namespace {

void require_layer_fit(const char* function, const Var& x, const Var& weight, const Var& bias) {
  require_one_type(function, x, weight);
  if (x.shape().rank() < 1 || weight.shape().rank() != 2 || x.shape()[-1] != weight.shape()[1])
    throw UsageError("{}: an input of shape {} does not fit a weight of shape {}", function,
                     to_string(x.shape()), to_string(weight.shape()));
  if (bias.value()) ops::require_shape(function, "the bias", bias.value(), {weight.shape()[0]});
}

/// The results of a layer.
struct LayerOutput {
  Tensor y;
  Tensor slope_at;  ///< read by the activation's backward: y for a ReLU; absent without an activation
};

LayerOutput run_layer(Tape& tape, const Tensor& x, const Var& weight, const Var& bias,
                      std::optional<ops::Activation> activation = {}) {
  kernels::Backend& backend = tape.backend();
  const Tensor y = backend.empty(x.shape().with(-1, weight.shape()[0]), x.dtype());
  const bool keeps_before = activation && *activation != ops::Activation::relu && tape.pass().record;
  const Tensor before = keeps_before ? empty_like(backend, y) : Tensor();
  constexpr std::int64_t few = 16;
  ops::MatMul product = ops::linear(as_rows(x), weight.value(), bias.value(), as_rows(y), activation,
                                    before ? as_rows(before) : before);
  product.few_rows = tape.pass().cache && product.a.size(0) <= few;
  tape.run_by_shard(product);
  return {y, before || !activation ? before : y};
}

/// Gradients of a layer's weight and bias. dy: [rows, out].
void write_parameter_gradients(Tape& t, const Tensor& x, const Tensor& dy, const Var& weight,
                               const Var& bias) {
  if (weight.needs_gradient() && bias.needs_gradient()) {
    write_gradients(t, weight, bias, [&](const Tensor& dweight, const Tensor& dbias, bool accumulate) {
      t.run_by_shard(ops::linear_backward_weight(as_rows(x), dy, dweight, accumulate, dbias));
    });
    return;
  }
  t.write_gradient(weight, [&](const Tensor& dweight, bool accumulate) {
    t.run_by_shard(ops::linear_backward_weight(as_rows(x), dy, dweight, accumulate));
  });
  t.write_gradient(bias, [&](const Tensor& dbias, bool accumulate) {
    t.run_by_shard(ops::SumRows{dy, dbias, accumulate});
  });
}

void add_input_gradient(Tape& t, const Var& x, const Tensor& dy, const Var& weight) {
  add_new_gradient(t, x, [&](const Tensor& dx) {
    t.run_by_shard(ops::linear_backward_input(dy, weight.value(), as_rows(dx)));
  });
}

/// The gradients of a layer's input, weight and bias. dy: [rows, out].
void write_layer_gradients(Tape& t, const Var& x, const Tensor& dy, const Var& weight, const Var& bias) {
  const kernels::Backend::SharedOperand shared(t.backend(), dy);
  write_parameter_gradients(t, x.value(), dy, weight, bias);
  add_input_gradient(t, x, dy, weight);
}

Var layer(const Var& input, const Var& weight, const Var& bias, std::optional<ops::Activation> activation) {
  const Var x = plain(input);
  require_layer_fit("linear", x, weight, bias);
  const LayerOutput output = run_layer(x.tape(), x.value(), weight, bias, activation);
  return x.tape().record(
      output.y, {&x, &weight, &bias},
      [x, weight, bias = bias.without_value(), activation, at = output.slope_at](Tape& t, const Tensor& dy) {
        Tensor upstream = dy;
        if (activation) {
          upstream = empty_like(t.backend(), dy);
          t.backend().run(ops::ActivateBackward{*activation, at, dy, upstream});
        }
        write_layer_gradients(t, x, as_rows(upstream), weight, bias);
      });
}

}  // namespace

Var matmul(const Var& a_input, const Var& b_input) {
  require_one_type("matmul", a_input, b_input);
  const Shape shape = ops::shape_of_product("matmul", a_input.shape(), b_input.shape());
  const Var a = plain(a_input), b = plain(b_input);
  const Tensor y = a.tape().backend().empty(shape, a.value().dtype());
  a.tape().run_by_shard(ops::MatMul{a.value(), b.value(), ops::Transposed::none, y});
  return a.tape().record(y, {&a, &b}, [a, b](Tape& t, const Tensor& dy) {
    const auto gradient = [&](const Var& of, const Tensor& left, const Tensor& right,
                              ops::Transposed transposed) {
      t.write_gradient(
          of,
          [&](const Tensor& sum, bool accumulate) {
            t.run_by_shard(ops::MatMul{left, right, transposed, sum, accumulate});
          },
          true);
    };
    gradient(a, dy, b.value(), ops::Transposed::b);
    gradient(b, a.value(), dy, ops::Transposed::a);
  });
}

Var linear(const Var& x, const Var& weight, const Var& bias) { return layer(x, weight, bias, {}); }

Var linear(const Var& x, const Var& weight, const Var& bias, ops::Activation activation) {
  return layer(x, weight, bias, activation);
}

Var feed_forward(const Var& input, const Var& weight_in, const Var& bias_in, ops::Activation activation,
                 const Var& weight_out, const Var& bias_out) {
  const Var x = plain(input);
  require_layer_fit("feed_forward", x, weight_in, bias_in);
  if (weight_out.shape().rank() != 2 || weight_out.shape()[1] != weight_in.shape()[0])
    throw UsageError("feed_forward: weights of shape {} and {} do not fit each other",
                     to_string(weight_in.shape()), to_string(weight_out.shape()));
  Tape& tape = x.tape();
  const LayerOutput hidden = run_layer(tape, x.value(), weight_in, bias_in, activation);
  return tape.record(run_layer(tape, hidden.y, weight_out, bias_out).y,
                     {&x, &weight_in, &bias_in, &weight_out, &bias_out},
                     [x, weight_in, bias_in = bias_in.without_value(), weight_out,
                      bias_out = bias_out.without_value(), activation, hidden](Tape& t, const Tensor& dy) {
                       const Tensor upstream = as_rows(empty_like(t.backend(), hidden.y));
                       {
                         const kernels::Backend::SharedOperand shared(t.backend(), dy);
                         write_parameter_gradients(t, hidden.y, as_rows(dy), weight_out, bias_out);
                         t.run_by_shard(ops::linear_backward_input(as_rows(dy), weight_out.value(), upstream,
                                                                   activation, as_rows(hidden.slope_at)));
                       }
                       write_layer_gradients(t, x, upstream, weight_in, bias_in);
                     });
}

}  // namespace lockstep
