// Dense layers.
#include "kernels/cpu/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/gemm.h"
#include "kernels/problems.h"

namespace lockstep::kernels {
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
