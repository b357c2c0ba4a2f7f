#include "ops/norm.h"

#include "lockstep/ops/check.h"

namespace lockstep::ops {
namespace {

template <class Operation>
GroupSizes group_sizes(const Operation& op) {
  require_images(op.name, "x", op.x);
  const std::int64_t images = op.x.size(0), channels = op.x.size(1);
  if (op.groups < 1 || channels % op.groups != 0)
    throw UsageError("{}: {} channels do not divide into {} groups", op.name, channels, op.groups);
  require_shape(op.name, "weight", op.weight, {channels});
  require_shape(op.name, "mean", op.mean, {images, op.groups});
  require_shape(op.name, "inv_std", op.inv_std, {images, op.groups});
  return {images, channels, op.groups, channels / op.groups, positions_of(op.x.shape())};
}

template <class Operation>
void check_adaptive(const Operation& op) {
  const GroupSizes sizes = op.sizes();
  require_shape(op.name, "bias", op.bias, {sizes.channels});
  if (op.addend) require_shape(op.name, "the addend", op.addend, {sizes.images, sizes.channels});
  if (op.scale_shift)
    require_shape(op.name, "scale_shift", op.scale_shift, {sizes.images, 2 * sizes.channels});
}

/// UsageError unless the gradient is present exactly if its input is, and has its shape.
void require_gradient(const char* operation, const char* name, const Tensor& gradient, const Tensor& input) {
  if (static_cast<bool>(gradient) != static_cast<bool>(input))
    throw UsageError("{}: {} and its input must both be present or absent", operation, name);
  if (input) require_shape(operation, name, gradient, input.shape());
}

void check_rows(const char* operation, const Tensor& x, const Tensor& weight, const char* bias_name,
                const Tensor& bias, const Tensor& mean, const Tensor& inv_std) {
  const auto [count, width] = rows_of(operation, x);
  require_numel(operation, "weight", weight, width);
  require_numel(operation, bias_name, bias, width);
  require_numel(operation, "mean", mean, count);
  require_numel(operation, "inv_std", inv_std, count);
}

}  // namespace

Rows rows_of(const char* operation, const Tensor& x) {
  if (x.shape().rank() == 0) throw UsageError("{}: x is a scalar; it needs a last dimension", operation);
  return {row_count(x.shape()), x.size(-1)};
}

void LayerNorm::check() const {
  if (static_cast<bool>(addend) != static_cast<bool>(sum))
    throw UsageError("{}: the addend and the sum must both be present or absent", name);
  if (addend) require_shape(name, "the addend", addend, x.shape());
  if (sum) require_shape(name, "the sum", sum, x.shape());
  require_shape(name, "y", y, x.shape());
  check_rows(name, x, weight, "bias", bias, mean, inv_std);
}

void LayerNormBackward::check() const {
  require_shape(name, "dy", dy, x.shape());
  require_shape(name, "dx", dx, x.shape());
  if (residual_grad) require_shape(name, "residual_grad", residual_grad, x.shape());
  check_rows(name, x, weight, "dbias", dbias, mean, inv_std);
  require_numel(name, "dweight", dweight, weight.numel());
}

void RmsNorm::check() const {
  const auto [count, width] = rows_of(name, x);
  require_numel(name, "weight", weight, width);
  require_shape(name, "y", y, x.shape());
  require_numel(name, "inv_rms", inv_rms, count);
}

void RmsNormBackward::check() const {
  const auto [count, width] = rows_of(name, x);
  require_shape(name, "dy", dy, x.shape());
  require_numel(name, "weight", weight, width);
  require_numel(name, "inv_rms", inv_rms, count);
  if (residual_grad) require_shape(name, "residual_grad", residual_grad, x.shape());
  require_shape(name, "dx", dx, x.shape());
  if (dweight) require_numel(name, "dweight", dweight, width);
}

GroupSizes GroupNorm::sizes() const { return group_sizes(*this); }
void GroupNorm::check() const {
  require_shape(name, "bias", bias, {sizes().channels});
  require_shape(name, "y", y, x.shape());
}

GroupSizes GroupNormBackward::sizes() const { return group_sizes(*this); }
void GroupNormBackward::check() const {
  require_shape(name, "dweight", dweight, {sizes().channels});
  require_shape(name, "dbias", dbias, dweight.shape());
  require_shape(name, "dy", dy, x.shape());
  require_shape(name, "dx", dx, x.shape());
}

GroupSizes AdaptiveGroupNorm::sizes() const { return group_sizes(*this); }
void AdaptiveGroupNorm::check() const {
  check_adaptive(*this);
  require_alike(name, "y", y, x);
}

GroupSizes AdaptiveGroupNormBackward::sizes() const { return group_sizes(*this); }
void AdaptiveGroupNormBackward::check() const {
  check_adaptive(*this);
  require_alike(name, "dy", dy, x);
  require_alike(name, "dx", dx, x);
  if (residual_grad) require_alike(name, "residual_grad", residual_grad, x);
  require_gradient(name, "daddend", daddend, addend);
  require_gradient(name, "dscale_shift", dscale_shift, scale_shift);
  require_shape(name, "dweight", dweight, weight.shape());
  require_shape(name, "dbias", dbias, bias.shape());
}

}  // namespace lockstep::ops
