// Layer norm and group norm.
#include "autograd/functions/support.h"

namespace lockstep {

Var layer_norm(const Var& given, const Var& weight, const Var& bias, float eps) {
  const Var x = plain(given);
  if (x.shape().rank() < 1 || !(weight.shape() == Shape{x.shape()[-1]}) || !(bias.shape() == weight.shape()))
    throw UsageError("layer_norm: an input of shape {} does not fit weight {} and bias {}",
                     to_string(x.shape()), to_string(weight.shape()), to_string(bias.shape()));
  Tape& tape = x.tape();
  kernels::Backend& backend = tape.backend();
  const Tensor y = empty_like(backend, x.value());
  const std::int64_t rows = as_rows(x.value()).size(0);
  const Tensor mean = backend.empty({rows}), inv_std = backend.empty({rows});
  backend.layer_norm(x.value(), weight.value(), bias.value(), eps, y, mean, inv_std);
  return tape.record(y, {&x, &weight, &bias},
                     [x, weight, bias = bias.without_value(), mean, inv_std](Tape& t, const Tensor& dy) {
                       const Tensor dx = empty_like(t.backend(), x.value());
                       into_pair(t, weight, bias,
                                 [&](const Tensor& dweight, const Tensor& dbias, bool accumulate) {
                                   t.backend().layer_norm_backward(dy, x.value(), weight.value(), mean,
                                                                   inv_std, dx, dweight, dbias, accumulate);
                                 });
                       t.give(x, dx);
                     });
}

Var group_norm(const Var& given, int groups, const Var& weight, const Var& bias, float eps) {
  require_rank("group_norm", given, 4);
  const Var x = plain(given);
  const std::int64_t channels = x.shape()[1];
  if (groups < 1 || channels % groups != 0)
    throw UsageError("group_norm: {} groups do not divide {} channels", groups, channels);
  if (!(weight.shape() == Shape{channels}) || !(bias.shape() == weight.shape()))
    throw UsageError("group_norm: an input of shape {} does not fit weight {} and bias {}",
                     to_string(x.shape()), to_string(weight.shape()), to_string(bias.shape()));
  Tape& tape = x.tape();
  kernels::Backend& backend = tape.backend();
  const Tensor y = empty_like(backend, x.value());
  const Tensor mean = backend.empty({x.shape()[0], groups}), inv_std = backend.empty({x.shape()[0], groups});
  backend.group_norm(x.value(), groups, weight.value(), bias.value(), eps, y, mean, inv_std);
  return tape.record(
      y, {&x, &weight, &bias},
      [x, weight, bias = bias.without_value(), groups, mean, inv_std](Tape& t, const Tensor& dy) {
        const Tensor dx = empty_like(t.backend(), x.value());
        into_pair(t, weight, bias, [&](const Tensor& dweight, const Tensor& dbias, bool accumulate) {
          t.backend().group_norm_backward(dy, x.value(), groups, weight.value(), mean, inv_std, dx, dweight,
                                          dbias, accumulate);
        });
        t.give(x, dx);
      });
}

}  // namespace lockstep
