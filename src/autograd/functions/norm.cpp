// Layer norm, RMS norm and group norm.
#include "lockstep/ops/norm.h"
#include "autograd/functions/support.h"

namespace lockstep {

namespace {

void require_fit(const char* function, const Var& x, const Var& weight, const Var& bias) {
  if (x.shape().rank() >= 1 && weight.shape() == Shape{x.shape()[-1]} && bias.shape() == weight.shape())
    return;
  throw UsageError("{}: an input of shape {} does not fit weight {} and bias {}", function,
                   to_string(x.shape()), to_string(weight.shape()), to_string(bias.shape()));
}

/// y = layer norm of x, computed already, with the rows' mean and inv_std.
Var record_layer_norm(const Tensor& y, const Var& x, const Var& weight, const Var& bias, const Tensor& mean,
                      const Tensor& inv_std) {
  return x.tape().record(
      y, {&x, &weight, &bias},
      [x, weight, bias = bias.without_value(), mean, inv_std](Tape& t, const Tensor& dy) {
        const Tensor beside = t.received(x), dx = empty_like(t.backend(), x.value());
        into_pair(t, weight, bias, [&](const Tensor& dweight, const Tensor& dbias, bool accumulate) {
          t.backend().run(ops::LayerNormBackward{dy, x.value(), weight.value(), mean, inv_std, beside, dx,
                                                 dweight, dbias, accumulate});
        });
        t.give_total(x, dx);
      });
}

}  // namespace

Var layer_norm(const Var& given, const Var& weight, const Var& bias, float eps) {
  const Var x = plain(given);
  require_fit("layer_norm", x, weight, bias);
  kernels::Backend& backend = x.tape().backend();
  const Tensor y = empty_like(backend, x.value());
  const std::int64_t rows = as_rows(x.value()).size(0);
  const Tensor mean = backend.empty({rows}), inv_std = backend.empty({rows});
  backend.run(ops::LayerNorm{x.value(), {}, weight.value(), bias.value(), eps, {}, y, mean, inv_std});
  return record_layer_norm(y, x, weight, bias, mean, inv_std);
}

SumAndNorm add_layer_norm(const Var& a_given, const Var& b_given, const Var& weight, const Var& bias,
                          float eps) {
  const Var a = plain(a_given), b = plain(b_given);
  if (!(a.shape() == b.shape()))
    throw UsageError("add_layer_norm: the shapes {} and {} differ", to_string(a.shape()),
                     to_string(b.shape()));
  require_fit("add_layer_norm", a, weight, bias);
  kernels::Backend& backend = a.tape().backend();
  const Tensor sum = empty_like(backend, a.value()), y = empty_like(backend, a.value());
  const std::int64_t rows = as_rows(sum).size(0);
  const Tensor mean = backend.empty({rows}), inv_std = backend.empty({rows});
  backend.run(ops::LayerNorm{a.value(), b.value(), weight.value(), bias.value(), eps, sum, y, mean, inv_std});
  const Var x = record_sum(sum, a, b);
  return {x, record_layer_norm(y, x, weight, bias, mean, inv_std)};
}

Var rms_norm(const Var& given, const Var& weight, float eps) {
  const Var x = plain(given);
  if (x.shape().rank() < 1 || !(weight.shape() == Shape{x.shape()[-1]}))
    throw UsageError("rms_norm: an input of shape {} does not fit weight {}", to_string(x.shape()),
                     to_string(weight.shape()));
  kernels::Backend& backend = x.tape().backend();
  const Tensor y = empty_like(backend, x.value());
  const Tensor inv_rms = backend.empty({as_rows(x.value()).size(0)});
  backend.run(ops::RmsNorm{x.value(), weight.value(), eps, y, inv_rms});
  return x.tape().record(y, {&x, &weight}, [x, weight, inv_rms](Tape& t, const Tensor& dy) {
    const Tensor beside = t.received(x), dx = empty_like(t.backend(), x.value());
    const auto write = [&](const Tensor& dweight, bool accumulate) {
      t.backend().run(
          ops::RmsNormBackward{dy, x.value(), weight.value(), inv_rms, beside, dx, dweight, accumulate});
    };
    weight.needs_gradient() ? t.into(weight, write) : write({}, false);
    t.give_total(x, dx);
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
  backend.run(ops::GroupNorm{x.value(), groups, weight.value(), bias.value(), eps, y, mean, inv_std});
  return tape.record(
      y, {&x, &weight, &bias},
      [x, weight, bias = bias.without_value(), groups, mean, inv_std](Tape& t, const Tensor& dy) {
        const Tensor dx = empty_like(t.backend(), x.value());
        into_pair(t, weight, bias, [&](const Tensor& dweight, const Tensor& dbias, bool accumulate) {
          t.backend().run(ops::GroupNormBackward{dy, x.value(), groups, weight.value(), mean, inv_std, dx,
                                                 dweight, dbias, accumulate});
        });
        t.give(x, dx);
      });
}

}  // namespace lockstep
