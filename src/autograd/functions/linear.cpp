// The dense layer.
#include <algorithm>
#include <array>

#include "autograd/functions/support.h"

namespace lockstep {
namespace {

Shape with_last(const Shape& shape, std::int64_t last) {
  std::array<std::int64_t, Shape::max_rank> extents{};
  std::copy(shape.begin(), shape.end(), extents.begin());
  const auto rank = static_cast<std::size_t>(shape.rank());
  extents[rank - 1] = last;
  return Shape(std::span<const std::int64_t>(extents.data(), rank));
}

}  // namespace

Var linear(const Var& given, const Var& weight, const Var& bias) {
  const Var x = plain(given);
  if (x.shape().rank() < 1 || weight.shape().rank() != 2 || x.shape()[-1] != weight.shape()[1])
    throw UsageError("linear: an input of shape {} does not fit a weight of shape {}", to_string(x.shape()),
                     to_string(weight.shape()));
  Tape& tape = x.tape();
  const Tensor y = tape.backend().empty(with_last(x.shape(), weight.shape()[0]));
  tape.backend().linear(as_rows(x.value()), weight.value(), bias.value(), as_rows(y));
  return tape.record(
      y, {&x, &weight, &bias}, [x, weight, bias = bias.without_value()](Tape& t, const Tensor& dy_given) {
        kernels::Backend& backend = t.backend();
        const Tensor dy = as_rows(dy_given);
        t.into(weight, [&](const Tensor& dweight, bool accumulate) {
          backend.linear_backward_weight(as_rows(x.value()), dy, dweight, accumulate);
        });
        t.into(bias, [&](const Tensor& dbias, bool accumulate) { backend.sum_rows(dy, dbias, accumulate); });
        give_new(t, x,
                 [&](const Tensor& dx) { backend.linear_backward_input(dy, weight.value(), as_rows(dx)); });
      });
}

}  // namespace lockstep
