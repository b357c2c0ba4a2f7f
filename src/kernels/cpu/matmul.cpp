// Dense layers.
#include "kernels/cpu/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/gemm.h"

namespace lockstep::kernels {
namespace {

struct LinearSizes {
  std::int64_t rows, in, out;
};

/// Checks inner: [..., in], outer: [..., out] of as many rows, weight: [out, in].
LinearSizes linear_sizes(const char* operation, const char* inner_name, const Tensor& inner,
                         const char* outer_name, const Tensor& outer, const Tensor& weight) {
  if (weight.shape().rank() != 2) {
    throw UsageError("{}: the weight has shape {}, not [out, in]", operation, to_string(weight.shape()));
  }
  const std::int64_t out = weight.size(0), in = weight.size(1);
  const auto rows_of = [operation](const char* name, const Tensor& tensor, std::int64_t width) {
    if (tensor.shape().rank() >= 1 && tensor.size(-1) == width) {
      std::int64_t rows = 1;
      for (int d = 0; d + 1 < tensor.shape().rank(); ++d) rows *= tensor.size(d);
      return rows;
    }
    throw UsageError("{}: {} has shape {}, whose last dimension is not the weight's {}", operation, name,
                     to_string(tensor.shape()), width);
  };
  const std::int64_t rows = rows_of(inner_name, inner, in), outer_rows = rows_of(outer_name, outer, out);
  if (rows != outer_rows) {
    throw UsageError("{}: {} {} and {} {} differ in their rows", operation, inner_name,
                     to_string(inner.shape()), outer_name, to_string(outer.shape()));
  }
  return {rows, in, out};
}

}  // namespace

void CpuBackend::linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) {
  const float *from = plain_floats("linear", "x", x), *w = plain_floats("linear", "the weight", weight);
  float* to = plain_floats("linear", "y", y);
  const auto [rows, in, out] = linear_sizes("linear", "x", x, "y", y, weight);
  const float* b = bias ? plain_floats("linear", "the bias", bias) : nullptr;
  if (bias) require_shape("linear", "the bias", bias, {out});
  gemm_.rows(rows, out, in, {from, in}, {w, in, true}, b, to);
}

void CpuBackend::linear_backward_input(const Tensor& dy, const Tensor& weight, const Tensor& dx) {
  constexpr const char* operation = "linear_backward_input";
  const float *from = plain_floats(operation, "dy", dy), *w = plain_floats(operation, "the weight", weight);
  float* to = plain_floats(operation, "dx", dx);
  const auto [rows, in, out] = linear_sizes(operation, "dx", dx, "dy", dy, weight);
  gemm_.rows(rows, in, out, {from, out}, {w, in}, nullptr, to);
}

void CpuBackend::linear_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dweight,
                                        bool accumulate) {
  constexpr const char* operation = "linear_backward_weight";
  const float *from = plain_floats(operation, "x", x), *upstream = plain_floats(operation, "dy", dy);
  float* to = plain_floats(operation, "dweight", dweight);
  const auto [rows, in, out] = linear_sizes(operation, "x", x, "dy", dy, dweight);
  gemm_.sum_of_outer(out, in, rows, upstream, from, accumulate, to);
}

}  // namespace lockstep::kernels
