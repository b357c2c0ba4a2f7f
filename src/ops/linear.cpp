#include "lockstep/ops/linear.h"

#include <fmt/format.h>

#include "lockstep/ops/check.h"

namespace lockstep::ops {
namespace {

/// Checks inner: [..., in], outer: [..., out] of as many rows, weight: [out, in].
LinearSizes linear_sizes(const char* operation, const char* inner_name, const Tensor& inner,
                         const char* outer_name, const Tensor& outer, const Tensor& weight) {
  if (weight.shape().rank() != 2)
    throw UsageError("{}: the weight has shape {}, not [out, in]", operation, to_string(weight.shape()));
  const std::int64_t out = weight.size(0), in = weight.size(1);
  const auto rows_of = [operation](const char* name, const Tensor& tensor, std::int64_t width) {
    if (tensor.shape().rank() < 1 || tensor.size(-1) != width)
      throw UsageError("{}: {} has shape {}, whose last dimension is not the weight's {}", operation, name,
                       to_string(tensor.shape()), width);
    std::int64_t rows = 1;
    for (int d = 0; d + 1 < tensor.shape().rank(); ++d) rows *= tensor.size(d);
    return rows;
  };
  const std::int64_t rows = rows_of(inner_name, inner, in), outer_rows = rows_of(outer_name, outer, out);
  if (rows != outer_rows)
    throw UsageError("{}: {} {} and {} {} differ in their rows", operation, inner_name,
                     to_string(inner.shape()), outer_name, to_string(outer.shape()));
  return {rows, in, out};
}

void check_bias(const char* operation, const char* name, const Tensor& bias, const LinearSizes& sizes) {
  if (bias) require_shape(operation, name, bias, {sizes.out});
}

}  // namespace

double LinearSizes::flops() const {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
}
std::string LinearSizes::text() const { return fmt::format("{} x {} -> {}", rows, in, out); }

LinearSizes Linear::sizes() const {
  const LinearSizes sizes = linear_sizes(name, "x", x, "y", y, weight);
  check_bias(name, "the bias", bias, sizes);
  return sizes;
}

LinearSizes LinearBackwardInput::sizes() const { return linear_sizes(name, "dx", dx, "dy", dy, weight); }

LinearSizes LinearBackwardWeight::sizes() const {
  const LinearSizes sizes = linear_sizes(name, "x", x, "dy", dy, dweight);
  check_bias(name, "dbias", dbias, sizes);
  return sizes;
}

LinearSizes LinearActivation::sizes() const {
  const LinearSizes sizes = linear_sizes(name, "x", x, "y", y, weight);
  check_bias(name, "the bias", bias, sizes);
  if (before) require_shape(name, "before", before, y.shape());
  return sizes;
}

LinearSizes LinearBackwardInputActivation::sizes() const {
  require_shape(name, "before", before, dx.shape());
  return linear_sizes(name, "dx", dx, "dy", dy, weight);
}
}  // namespace lockstep::ops
