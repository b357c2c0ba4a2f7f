#include "lockstep/ops/update.h"

#include <cmath>

#include "lockstep/ops/check.h"

namespace lockstep::ops {

void check_shape_of_update(const char* operation, const char* name, const Tensor& tensor,
                           const Tensor& value) {
  require_shape(operation, name, tensor, value.shape());
}

void check_rounded_value(const char* operation, const Tensor& rounded, const Tensor& value) {
  if (!rounded) return;
  require_shape(operation, "the rounded value", rounded, value.shape());
  if (rounded.dtype() != DType::bfloat16)
    throw UsageError("{}: the rounded value is {}, not bfloat16", operation, to_string(rounded.dtype()));
}

AdamW AdamW::of(const Step& step) {
  if (step.step < 1) throw UsageError("adamw: steps count from 1, not {}", step.step);
  const auto steps = static_cast<double>(step.step);
  return {.decay = static_cast<float>(1.0 - step.lr * step.weight_decay),
          .gradient_factor = step.gradient_factor,
          .beta1 = static_cast<float>(step.beta1),
          .beta2 = static_cast<float>(step.beta2),
          .fresh1 = static_cast<float>(1.0 - step.beta1),
          .fresh2 = static_cast<float>(1.0 - step.beta2),
          .correction2 = static_cast<float>(std::sqrt(1.0 - std::pow(step.beta2, steps))),
          .eps = static_cast<float>(step.eps),
          .rate = static_cast<float>(step.lr / (1.0 - std::pow(step.beta1, steps)))};
}

void BlockSumsOfSquares::check() const {
  for (const auto& [x, blocks] : parts) {
    const std::int64_t needed = (x.numel() + block_elements - 1) / block_elements;
    if (blocks.numel() != needed)
      throw UsageError("{}: {} elements make {} blocks, not {}", name, x.numel(), needed, blocks.numel());
  }
}

void AddAlongTree::check() const {
  if (parts < 1 || parts > max_parts)
    throw UsageError("{}: {} parts; there must be from 1 to {}", name, parts, max_parts);
  if (sums.dtype() != DType::float32 && sums.dtype() != DType::float64)
    throw UsageError("{}: the sums are {}, neither float32 nor float64", name, to_string(sums.dtype()));
  if (planes.dtype() != sums.dtype())
    throw UsageError("{}: the planes are {}, but the sums are {}", name, to_string(planes.dtype()),
                     to_string(sums.dtype()));
  if (table.shape().rank() != 2 || table.size(1) != 4)
    throw UsageError("{}: the table of shape {} must have shape [chunks, 4]", name, to_string(table.shape()));
}

}  // namespace lockstep::ops
