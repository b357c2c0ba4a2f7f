// What the differentiable functions share.
#pragma once

#include "lockstep/autograd/functions.h"

namespace lockstep {

inline Tensor empty_like(kernels::Backend& backend, const Tensor& tensor) {
  return backend.empty(tensor.shape(), tensor.dtype(), tensor.channel_block());
}

inline Var plain(const Var& x) { return to_channel_block(x, 1); }

/// A product of float32 activations with a weight rounded for bf16 ones would be slow, and neither's result.
inline void require_one_type(const char* function, const Var& x, const Var& weight) {
  if (x.value().dtype() == DType::float32 && weight.value().dtype() == DType::bfloat16)
    throw UsageError(
        "{}: the input is float32 in a pass that computes in bf16; begin the model with Tape::batch(batch), "
        "not constant()",
        function);
}

/// [rows, last dimension] of a plain tensor; a view.
inline Tensor as_rows(const Tensor& tensor) {
  std::int64_t rows = 1;  // counted, not divided: a width of 0 has rows, too
  for (int d = 0; d + 1 < tensor.shape().rank(); ++d) rows *= tensor.size(d);
  return tensor.reshape({rows, tensor.size(-1)});
}

inline void require_rank(const char* function, const Var& x, int rank) {
  if (x.shape().rank() != rank)
    throw UsageError("{}: the input has shape {}; {} dimensions are needed", function, to_string(x.shape()),
                     rank);
}

/// `axis` counted from the first. UsageError if the shape has none such.
inline int axis_of(const char* function, const Shape& shape, int axis) {
  const int rank = shape.rank();
  if (axis < -rank || axis >= rank)
    throw UsageError("{}: shape {} has no axis {}", function, to_string(shape), axis);
  return axis < 0 ? axis + rank : axis;
}

/// For kernels that overwrite: calls write(dx) with new memory of the input's shape and layout, then gives
/// it.
template <class Write>
void add_new_gradient(Tape& tape, const Var& input, const Write& write) {
  if (!input.needs_gradient()) return;
  const Tensor dx = empty_like(tape.backend(), input.value());
  write(dx);
  tape.add_gradient(input, dx);
}

/// For kernels that add to a part: calls add(dx) with what the input has received so far, or zeros.
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

/// sum = a + b, computed already.
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
    const Tensor dweight = backend.empty(weight.shape()), dbias = backend.empty(bias.shape());
    write(dweight, dbias, false);
    tape.add_gradient(weight, dweight);
    tape.add_gradient(bias, dbias);
    return;
  }
  tape.write_gradient(weight, [&](const Tensor& dweight, bool accumulate_weight) {
    tape.write_gradient(bias, [&](const Tensor& dbias, bool accumulate_bias) {
      if (accumulate_weight == accumulate_bias) return write(dweight, dbias, accumulate_weight);
      const Tensor new_weight = backend.empty(weight.shape()), new_bias = backend.empty(bias.shape());
      write(new_weight, new_bias, false);
      accumulate_weight ? backend.run(ops::add(dweight, new_weight, dweight))
                        : backend.copy(new_weight, dweight);
      accumulate_bias ? backend.run(ops::add(dbias, new_bias, dbias)) : backend.copy(new_bias, dbias);
    });
  });
}

}  // namespace lockstep
