// Helpers of the differentiable functions.
#pragma once

#include "lockstep/autograd/functions.h"
#include "lockstep/base/random.h"
#include "lockstep/ops/check.h"
#include "ops/reduction.h"

namespace lockstep {

inline Tensor empty_like(kernels::Backend& backend, const Tensor& tensor) {
  return backend.empty(tensor.shape(), tensor.dtype(), tensor.channel_block());
}

inline Var plain(const Var& x) { return to_channel_block(x, 1); }

/// The memory of x under another shape and layout (shape.cpp).
Var stored_as(const Var& x, const Shape& shape, int channel_block = 1);

/// UsageError for float32 activations in a bf16 pass, whose weights are rounded: such a product would be slow
/// and have the precision of neither type.
inline void require_one_type(const char* function, const Var& x, const Var& weight) {
  if (x.value().dtype() == DType::float32 && weight.value().dtype() == DType::bfloat16)
    throw UsageError(
        "{}: the input is float32 in a pass that computes in bf16; begin the model with Tape::batch(batch), "
        "not constant()",
        function);
}

/// [rows, last dimension] of a plain tensor; a view.
inline Tensor as_rows(const Tensor& tensor) {
  return tensor.reshape({ops::row_count(tensor.shape()), tensor.size(-1)});
}

inline void require_rank(const char* function, const Var& x, int rank) {
  if (x.shape().rank() != rank)
    throw UsageError("{}: the input has shape {}; {} dimensions are needed", function, to_string(x.shape()),
                     rank);
}

/// `axis` counted from the first. UsageError if the shape has no such axis.
inline int axis_of(const char* function, const Shape& shape, int axis) {
  const int rank = shape.rank();
  if (axis < -rank || axis >= rank)
    throw UsageError("{}: shape {} has no axis {}", function, to_string(shape), axis);
  return axis < 0 ? axis + rank : axis;
}

/// For kernels that overwrite: calls write(dx) with new memory of the input's shape and layout, and adds it
/// to the input's gradient.
template <class Write>
void add_new_gradient(Tape& tape, const Var& input, const Write& write) {
  if (!input.needs_gradient()) return;
  const Tensor dx = empty_like(tape.backend(), input.value());
  write(dx);
  tape.add_gradient(input, dx);
}

/// dy: the gradient of the broadcast input. The input's gradient is its sum over the repetitions. rounds: as
/// in Tape::write_gradient.
inline void add_broadcast_gradient(Tape& tape, const Var& input, const Tensor& dy, bool rounds = false) {
  if (input.shape() == dy.shape()) return tape.add_gradient(input, dy);
  tape.write_gradient(
      input,
      [&](const Tensor& dx, bool accumulate) {
        const ops::ReduceAxes<ops::Total> sum{.x = dy, .y = dx, .accumulate = accumulate};
        dx.shape() == input.shape() ? tape.backend().run(sum) : tape.run_by_shard(sum);
      },
      rounds);
}

/// Records y = f(x), computed already, whose backward is one operation: backward_of(dy, dx) returns it.
template <class BackwardOf>
Var record_unary(const Tensor& y, const Var& x, const BackwardOf& backward_of) {
  return x.tape().record(y, {&x}, [x = x.without_value(), backward_of](Tape& t, const Tensor& dy) {
    add_new_gradient(t, x, [&](const Tensor& dx) { t.backend().run(backward_of(dy, dx)); });
  });
}

/// Of a dropout in that pass.
inline RandomKey dropout_key(const Pass& pass, std::uint64_t purpose) {
  return {.seed = pass.seed, .purpose = purpose, .step = pass.step, .shard = pass.shard};
}

/// For kernels that add to some elements: calls add(dx) with the input's gradient so far, or zeros.
template <class Add>
void add_to_part(Tape& tape, const Var& input, const Add& add) {
  if (!input.needs_gradient()) return;
  Tensor dx = tape.take_gradient(input);
  if (!dx) {
    dx = empty_like(tape.backend(), input.value());
    tape.backend().fill(dx, 0);
  }
  add(dx);
  tape.set_gradient(input, dx);
}

/// Records sum = a + b, computed already.
inline Var record_sum(const Tensor& sum, const Var& a, const Var& b) {
  return a.tape().record(sum, {&a, &b},
                         [a = a.without_value(), b = b.without_value()](Tape& t, const Tensor& dy) {
                           t.add_gradient(a, dy);
                           t.add_gradient(b, dy);
                         });
}

/// For kernels that write the gradients of a scale and a shift together: write(dweight, dbias, accumulate).
template <class Write>
void write_gradients(Tape& tape, const Var& weight, const Var& bias, const Write& write) {
  kernels::Backend& backend = tape.backend();
  if (!weight.needs_gradient() || !bias.needs_gradient()) {
    const Tensor dweight = backend.empty(tape.of_each_shard(weight.shape())),
                 dbias = backend.empty(tape.of_each_shard(bias.shape()));
    write(dweight, dbias, false);
    tape.add_gradient(weight, dweight);
    tape.add_gradient(bias, dbias);
    return;
  }
  tape.write_gradient(weight, [&](const Tensor& dweight, bool accumulate_weight) {
    tape.write_gradient(bias, [&](const Tensor& dbias, bool accumulate_bias) {
      if (accumulate_weight == accumulate_bias) return write(dweight, dbias, accumulate_weight);
      const Tensor new_weight = backend.empty(dweight.shape()), new_bias = backend.empty(dbias.shape());
      write(new_weight, new_bias, false);
      accumulate_weight ? backend.run(ops::add(dweight, new_weight, dweight))
                        : backend.copy(new_weight, dweight);
      accumulate_bias ? backend.run(ops::add(dbias, new_bias, dbias)) : backend.copy(new_bias, dbias);
    });
  });
}

}  // namespace lockstep
