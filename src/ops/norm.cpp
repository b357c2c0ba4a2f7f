#include "ops/norm.h"

#include "lockstep/ops/check.h"

namespace lockstep::ops {
namespace {

GroupSizes group_sizes(const char* operation, const Tensor& x, int groups, const Tensor& weight,
                       const Tensor& mean, const Tensor& inv_std) {
  require_images(operation, "x", x);
  const std::int64_t channels = x.size(1);
  if (groups < 1 || channels % groups != 0)
    throw UsageError("{}: {} channels do not divide into {} groups", operation, channels, groups);
  require_shape(operation, "weight", weight, {channels});
  require_shape(operation, "mean", mean, {x.size(0), groups});
  require_shape(operation, "inv_std", inv_std, {x.size(0), groups});
  return {x.size(0), channels, groups, channels / groups, x.size(2) * x.size(3)};
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
    throw UsageError("{}: an addend and a tensor for the sum must be given together", name);
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

GroupSizes GroupNorm::sizes() const { return group_sizes(name, x, groups, weight, mean, inv_std); }
void GroupNorm::check() const {
  require_shape(name, "bias", bias, {sizes().channels});
  require_shape(name, "y", y, x.shape());
}

GroupSizes GroupNormBackward::sizes() const { return group_sizes(name, x, groups, weight, mean, inv_std); }
void GroupNormBackward::check() const {
  require_shape(name, "dweight", dweight, {sizes().channels});
  require_shape(name, "dbias", dbias, dweight.shape());
  require_shape(name, "dy", dy, x.shape());
  require_shape(name, "dx", dx, x.shape());
}

}  // namespace lockstep::ops
