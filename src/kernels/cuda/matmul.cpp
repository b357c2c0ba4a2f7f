// Dense layers. Activations are float32 or bf16; weights are converted to their type on the way, and weight
// gradients are float32 sums of products of it.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/matmul_plan.h"
#include "kernels/cuda/operands.h"
#include "kernels/problems.h"

namespace lockstep::kernels {

void CudaBackend::linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) {
  constexpr const char* operation = "linear";
  const Operands args{operation, device()};
  const void* const from = args.plain_of_type("x", x, x.dtype());
  args.plain_of_type("the weight", weight, weight.dtype());
  void* const to = args.plain_of_type("y", y, y.dtype());
  const auto [rows, in, out] = linear_sizes(operation, "x", x, "y", y, weight);
  if (bias) {
    require_shape(operation, "the bias", bias, {out});
    args.plain_of_type("the bias", bias, bias.dtype());
  }
  const Launch on = launch();
  if (rows == 0 || out == 0) return;
  if (in == 0) {
    fill(y, 0);
    if (bias) launch_add_rows(on, y.dtype(), to, in_type(bias, DType::float32).data<float>(), to, rows, out);
    return;
  }
  const Tensor w = in_type(weight, x.dtype()), b = bias ? in_type(bias, y.dtype()) : Tensor();
  matmul_->multiply(rows, out, in, x.dtype(), {from, in}, {w.raw(), in, true}, y.dtype(), to,
                    bias ? b.raw() : nullptr, false);
}

void CudaBackend::linear_backward_input(const Tensor& dy, const Tensor& weight, const Tensor& dx) {
  constexpr const char* operation = "linear_backward_input";
  const Operands args{operation, device()};
  const void* const from = args.plain_of_type("dy", dy, dy.dtype());
  args.plain_of_type("the weight", weight, weight.dtype());
  void* const to = args.plain_of_type("dx", dx, dx.dtype());
  const auto [rows, in, out] = linear_sizes(operation, "dx", dx, "dy", dy, weight);
  launch();
  if (rows == 0 || in == 0) return;
  if (out == 0) return fill(dx, 0);
  const Tensor w = in_type(weight, dy.dtype());
  matmul_->multiply(rows, in, out, dy.dtype(), {from, out}, {w.raw(), in}, dx.dtype(), to, nullptr, false);
}

void CudaBackend::linear_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dweight,
                                         bool accumulate) {
  constexpr const char* operation = "linear_backward_weight";
  const Operands args{operation, device()};
  const void* const from = args.plain_of_type("x", x, x.dtype());
  const void* const upstream = args.plain_of_type("dy", dy, x.dtype());
  float* const to = args.plain_floats("dweight", dweight);
  const auto [rows, in, out] = linear_sizes(operation, "x", x, "dy", dy, dweight);
  launch();
  if (in == 0 || out == 0) return;
  if (rows == 0) {
    if (!accumulate) fill(dweight, 0);
    return;
  }
  matmul_->multiply(out, in, rows, x.dtype(), {upstream, out, true}, {from, in}, DType::float32, to, nullptr,
                    accumulate);
}

}  // namespace lockstep::kernels
