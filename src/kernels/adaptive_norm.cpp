// Adaptive group norm by other operations, for devices without a faster function.
#include "ops/norm.h"

#include "kernels/compositions.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/random.h"
#include "ops/reduction.h"
#include "ops/strided_copy.h"

namespace lockstep::kernels {
namespace {

using ops::Map, ops::StridedCopy, ops::StridedView;

Tensor plain(Backend& backend, const Tensor& x) {
  if (x.channel_block() == 1) return x;
  const Tensor copy = backend.empty(x.shape(), x.dtype());
  backend.run(ops::ToLayout{x, copy});
  return copy;
}

/// The tensor itself if it is plain; otherwise plain memory for the result, which to_layout_of() converts.
Tensor plain_result(Backend& backend, const Tensor& of) {
  return of.channel_block() == 1 ? of : backend.empty(of.shape(), of.dtype());
}
void to_layout_of(Backend& backend, const Tensor& from, const Tensor& to) {
  if (!from.shares_memory_with(to)) backend.run(ops::ToLayout{from, to});
}

/// [N, C] as a shape that broadcasts to that of x, images or volumes.
Tensor of_images(const Tensor& by_channel, const Tensor& x) {
  Shape shape = by_channel.shape();
  while (shape.rank() < x.shape().rank()) shape.append(1);
  return by_channel.reshape(shape);
}

/// The view of a half of [N, 2 C].
StridedView half(const Tensor& scale_shift, int which) {
  const std::int64_t channels = scale_shift.size(1) / 2;
  return StridedView(scale_shift).narrowed(1, which * channels, channels);
}

/// scale_shift apart: 1 + scale, and shift.
struct Modulation {
  Tensor gain, shift;

  Modulation(Backend& backend, const Tensor& scale_shift, const Tensor& x) {
    if (!scale_shift) return;
    const auto part = [&](int which) {
      const Tensor copy = backend.empty({scale_shift.size(0), scale_shift.size(1) / 2}, scale_shift.dtype());
      backend.run(StridedCopy{half(scale_shift, which), StridedView(copy)});
      return of_images(copy, x);
    };
    gain = part(0);
    shift = part(1);
    backend.run(Map<ops::Shifted>{{1, 1}, {gain}, gain});
  }

  /// to = z gain + shift; z itself may be `to`.
  void apply(Backend& backend, const Tensor& z, const Tensor& to) const {
    backend.run(Map<ops::Product>{{}, {z, gain}, to});
    backend.run(Map<ops::Sum>{{}, {to, shift}, to});
  }
};

/// h, plain.
template <class Operation>
Tensor norm_input(Backend& backend, const Operation& op) {
  const Tensor x = plain(backend, op.x);
  if (!op.addend) return x;
  const Tensor h = backend.empty(x.shape(), x.dtype());
  backend.run(Map<ops::Sum>{{}, {x, of_images(op.addend, x)}, h});
  return h;
}

}  // namespace

void norm_then_dropout(Backend& backend, const ops::AdaptiveGroupNorm& op, int parts) {
  ops::AdaptiveGroupNorm norm = op;
  norm.p = 0;
  backend.run(norm);
  backend.run_parts(ops::Dropout{op.y, op.p, op.key, op.y}, parts);
}

void dropout_then_norm_backward(Backend& backend, const ops::AdaptiveGroupNormBackward& op, int parts) {
  ops::AdaptiveGroupNormBackward norm = op;
  norm.p = 0;
  norm.dy = backend.empty(op.dy.shape(), op.dy.dtype(), op.dy.channel_block());
  backend.run_parts(ops::Dropout{op.dy, op.p, op.key, norm.dy}, parts);
  backend.run_parts(norm, parts);
}

void adaptive_group_norm(Backend& backend, const ops::AdaptiveGroupNorm& op) {
  if (op.p > 0) return norm_then_dropout(backend, op, 1);
  const Tensor h = norm_input(backend, op), y = plain_result(backend, op.y);
  backend.run(ops::GroupNorm{h, op.groups, op.weight, op.bias, op.eps, y, op.mean, op.inv_std});
  if (op.scale_shift) Modulation(backend, op.scale_shift, h).apply(backend, y, y);
  if (op.silu) backend.run(ops::Activate{ops::Activation::silu, y, y});
  to_layout_of(backend, y, op.y);
}

void adaptive_group_norm_backward(Backend& backend, const ops::AdaptiveGroupNormBackward& op) {
  if (op.p > 0) return dropout_then_norm_backward(backend, op, 1);
  const auto plain_memory = [&] { return backend.empty(op.x.shape(), op.x.dtype()); };
  const Tensor h = norm_input(backend, op);
  const Modulation modulation(backend, op.scale_shift, h);
  Tensor normal;  // the norm's result, computed again
  if (op.silu || op.scale_shift) {
    const Tensor mean = backend.empty(op.mean.shape()), inv_std = backend.empty(op.mean.shape());
    normal = plain_memory();
    backend.run(ops::GroupNorm{h, op.groups, op.weight, op.bias, op.eps, normal, mean, inv_std});
  }
  Tensor g = plain(backend, op.dy);
  if (op.silu) {
    Tensor argument = normal;
    if (op.scale_shift) modulation.apply(backend, normal, argument = plain_memory());
    const Tensor gated = plain_memory();
    backend.run(ops::ActivateBackward{ops::Activation::silu, argument, g, gated});
    g = gated;
  }
  if (op.scale_shift) {
    const Tensor dscale = backend.empty(modulation.gain.shape(), op.scale_shift.dtype()),
                 dshift = backend.empty(modulation.gain.shape(), op.scale_shift.dtype());
    backend.run(ops::ReduceAxes<ops::SumOfProducts>{.x = g, .y = dscale, .other = normal});
    backend.run(ops::ReduceAxes<ops::Total>{.x = g, .y = dshift});
    const Shape by_channel{dscale.size(0), dscale.size(1)};
    backend.run(StridedCopy{StridedView(dscale.reshape(by_channel)), half(op.dscale_shift, 0)});
    backend.run(StridedCopy{StridedView(dshift.reshape(by_channel)), half(op.dscale_shift, 1)});
    const Tensor scaled = plain_memory();
    backend.run(Map<ops::Product>{{}, {g, modulation.gain}, scaled});
    g = scaled;
  }
  const Tensor dx = plain_result(backend, op.dx);
  backend.run(ops::GroupNormBackward{g, h, op.groups, op.weight, op.mean, op.inv_std, dx, op.dweight,
                                     op.dbias, op.accumulate});
  if (op.addend) backend.run(ops::ReduceAxes<ops::Total>{.x = dx, .y = of_images(op.daddend, dx)});
  if (op.residual_grad) backend.run(ops::add(dx, plain(backend, op.residual_grad), dx));
  to_layout_of(backend, dx, op.dx);
}

}  // namespace lockstep::kernels
