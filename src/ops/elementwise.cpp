#include "lockstep/ops/elementwise.h"

#include <algorithm>

#include "lockstep/ops/check.h"

namespace lockstep::ops {

void check_broadcast(const char* operation, std::span<const Tensor> inputs, const Tensor& y) {
  for (const Tensor& input : inputs) {
    if (input.shape() == y.shape()) {
      require_block(operation, "an input", input, y);
      continue;
    }
    const bool plain = y.channel_block() == 1 && input.channel_block() == 1;
    if ((input.numel() == 1 || plain) && broadcasts_to(input.shape(), y.shape())) continue;
    throw UsageError("{}: an input of shape {} does not broadcast to {}{}", operation,
                     to_string(input.shape()), to_string(y.shape()),
                     y.channel_block() == 1 ? "" : " in channel blocks");
  }
}

void check_alike(const char* operation, std::span<const Tensor> inputs, const Tensor& y) {
  for (const Tensor& input : inputs) require_same(operation, "an input", input, y);
}

Map<Sum> add(const Tensor& a, const Tensor& b, const Tensor& y) {
  require_same("add", "b", b, a);
  require_same("add", "y", y, a);
  return {{}, {a, b}, y};
}

Map<Scaled> scale(const Tensor& x, float factor, const Tensor& y) {
  require_same("scale", "y", y, x);
  return {{factor}, {x}, y};
}

Map<LossSlope<SquaredError>> squared_error_backward(const Tensor& x, const Tensor& target,
                                                    const Tensor& factor, const Tensor& dx) {
  require_same("squared_error_backward", "target", target, x);
  require_same("squared_error_backward", "dx", dx, x);
  require_shape("squared_error_backward", "the factor", factor, {});
  return {{}, {x, target, factor}, dx};
}

void check_reduction(const char* operation, std::span<const Tensor> inputs, const Tensor& total) {
  for (const Tensor& input : inputs) require_shape(operation, "an input", input, inputs.front().shape());
  require_shape(operation, "the total", total, {2});
}

Map<Sum> add_rows(const Tensor& x, const Tensor& row, const Tensor& y) {
  require_shape("add_rows", "y", y, x.shape());
  require_plain("add_rows", "x", x);
  // The last dimensions of x that hold as many elements as the row.
  std::int64_t width = 1;
  int first = x.shape().rank();
  while (first > 0 && width != row.numel()) width *= x.size(--first);
  if (width != row.numel())
    throw UsageError("add_rows: x of shape {} does not divide into rows of {} elements", to_string(x.shape()),
                     row.numel());
  const std::span<const std::int64_t> extents(x.shape().begin(), x.shape().end());
  return {{}, {x, row.reshape(Shape(extents.subspan(static_cast<std::size_t>(first))))}, y};
}

void Activate::check() const { require_alike(name, "y", y, x); }

void ActivateBackward::check() const {
  require_alike(name, "dy", dy, x);
  require_alike(name, "dx", dx, x);
}

void Fill::check() const {
  switch (to.dtype()) {
    case DType::float32:
    case DType::bfloat16:
    case DType::float64:
    case DType::int64:
    case DType::int32:
    case DType::uint8:
      return;
    default:
      throw UsageError("fill: operations do not support {}, a type of messages and files",
                       to_string(to.dtype()));
  }
}

void ToLayout::check() const { require_shape(name, "to", to, from.shape()); }

void NormalizeImages::check() const {
  require_shape(name, "y", y, x.shape());
  require_images(name, "x", x);
  require_shape(name, "scale", scale, {x.size(1)});
  require_shape(name, "shift", shift, {x.size(1)});
}

std::int64_t SumRows::rows() const {
  const std::int64_t width = row.numel();
  if (width == 0 ? x.numel() == 0 : x.numel() % width == 0) return width == 0 ? 0 : x.numel() / width;
  throw UsageError("{}: x of shape {} does not divide into rows of {} elements", name, to_string(x.shape()),
                   width);
}

void Accumulate::check() const {
  require_alike(name, "x", x, into);
  const DType sum = into.dtype(), added = x.dtype();
  if (added == sum ? sum == DType::float32 || sum == DType::float64
                   : sum == DType::float32 && added == DType::float64)
    return;
  throw UsageError("accumulate: cannot add {} to {}", to_string(added), to_string(sum));
}

}  // namespace lockstep::ops
