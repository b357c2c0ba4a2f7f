#include "ops/adaptive_norm.h"

#include "lockstep/ops/check.h"

namespace lockstep::ops {
namespace {

template <class Operation>
GroupSizes sizes_of(const Operation& op) {
  require_images(op.name, "x", op.x);
  const std::int64_t images = op.x.size(0), channels = op.x.size(1);
  if (op.groups < 1 || channels % op.groups != 0)
    throw UsageError("{}: {} channels do not divide into {} groups", op.name, channels, op.groups);
  require_shape(op.name, "weight", op.weight, {channels});
  require_shape(op.name, "bias", op.bias, {channels});
  if (op.addend) require_shape(op.name, "the addend", op.addend, {images, channels});
  if (op.scale_shift) require_shape(op.name, "scale_shift", op.scale_shift, {images, 2 * channels});
  require_shape(op.name, "mean", op.mean, {images, op.groups});
  require_shape(op.name, "inv_std", op.inv_std, {images, op.groups});
  return {images, channels, op.groups, channels / op.groups, op.x.size(2) * op.x.size(3)};
}

/// A gradient is there where its input is, and has its shape.
void require_gradient(const char* operation, const char* name, const Tensor& gradient, const Tensor& input) {
  if (static_cast<bool>(gradient) != static_cast<bool>(input))
    throw UsageError("{}: {} and its input must be given together", operation, name);
  if (input) require_shape(operation, name, gradient, input.shape());
}

}  // namespace

GroupSizes AdaptiveGroupNorm::sizes() const { return sizes_of(*this); }
void AdaptiveGroupNorm::check() const {
  (void)sizes();
  require_alike(name, "y", y, x);
}

GroupSizes AdaptiveGroupNormBackward::sizes() const { return sizes_of(*this); }
void AdaptiveGroupNormBackward::check() const {
  (void)sizes();
  require_alike(name, "dy", dy, x);
  require_alike(name, "dx", dx, x);
  if (residual_grad) require_alike(name, "residual_grad", residual_grad, x);
  require_gradient(name, "daddend", daddend, addend);
  require_gradient(name, "dscale_shift", dscale_shift, scale_shift);
  require_shape(name, "dweight", dweight, weight.shape());
  require_shape(name, "dbias", dbias, bias.shape());
}

}  // namespace lockstep::ops
