// Dense layers. Activations are float32 or bf16; weights are converted to their type on the way, and weight
// gradients are float32 sums of products of it.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/matmul_plan.h"
#include "kernels/cuda/operands.h"
#include "kernels/problems.h"

namespace lockstep::kernels {
namespace {

/// Whether cuBLASLt's GELU may stand for ours. It is an approximation that bf16's rounding covers, reads rows
/// of packs, and is that by tanh; its ReLU hides a NaN, which ours keeps for the loss to show.
bool gelu_fits(Activation kind, const Tensor& from, const Tensor& to) {
  return kind == Activation::gelu_tanh && from.dtype() == DType::bfloat16 && to.dtype() == DType::bfloat16 &&
         to.size(to.shape().rank() - 1) % 8 == 0;
}

}  // namespace

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
  Epilogue epilogue;
  if (bias) epilogue = {.kind = Epilogue::Kind::bias, .bias = b.raw()};
  matmul_->multiply(rows, out, in, x.dtype(), {from, in}, {w.raw(), in, true}, y.dtype(), to, epilogue,
                    false);
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
  matmul_->multiply(rows, in, out, dy.dtype(), {from, out}, {w.raw(), in}, dx.dtype(), to, {}, false);
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
  matmul_->multiply(out, in, rows, x.dtype(), {upstream, out, true}, {from, in}, DType::float32, to, {},
                    accumulate);
}

void CudaBackend::linear_backward_weight_bias(const Tensor& x, const Tensor& dy, const Tensor& dweight,
                                              const Tensor& dbias, bool accumulate) {
  constexpr const char* operation = "linear_backward_weight_bias";
  const Operands args{operation, device()};
  const auto [rows, in, out] = linear_sizes(operation, "x", x, "dy", dy, dweight);
  if (x.dtype() == DType::bfloat16 && rows > 0 && in > 0 && out > 0) {
    const void* const from = args.plain_of_type("x", x, x.dtype());
    const void* const upstream = args.plain_of_type("dy", dy, x.dtype());
    float* const to = args.plain_floats("dweight", dweight);
    require_shape(operation, "dbias", dbias, {out});
    // The epilogue overwrites.
    const Tensor sums = accumulate ? scratch(out) : dbias;
    launch();
    if (matmul_->try_multiply(out, in, rows, x.dtype(), {upstream, out, true}, {from, in}, DType::float32, to,
                              {.kind = Epilogue::Kind::bias_gradient, .bias = args.floats("dbias", sums)},
                              accumulate)) {
      if (accumulate) add(dbias, sums, dbias);
      return;
    }
  }
  Backend::linear_backward_weight_bias(x, dy, dweight, dbias, accumulate);
}

void CudaBackend::linear_activation(Activation kind, const Tensor& x, const Tensor& weight,
                                    const Tensor& bias, const Tensor& before, const Tensor& y) {
  if (before) require_alike("linear_activation", "before", before, y);
  if (gelu_fits(kind, x, y) && gelu_of_product(x, weight, bias, before, y)) return;
  Backend::linear_activation(kind, x, weight, bias, before, y);
}

bool CudaBackend::gelu_of_product(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                  const Tensor& before, const Tensor& y) {
  constexpr const char* operation = "linear_activation";
  const Operands args{operation, device()};
  const auto [rows, in, out] = linear_sizes(operation, "x", x, "y", y, weight);
  if (rows == 0 || in == 0 || out == 0) return false;
  if (bias) require_shape(operation, "the bias", bias, {out});
  const Tensor w = in_type(weight, x.dtype()), b = bias ? in_type(bias, y.dtype()) : Tensor();
  launch();
  return matmul_->try_multiply(rows, out, in, x.dtype(), {args.plain_of_type("x", x, x.dtype()), in},
                               {w.raw(), in, true}, y.dtype(), args.plain_of_type("y", y, y.dtype()),
                               {.kind = Epilogue::Kind::gelu,
                                .bias = bias ? b.raw() : nullptr,
                                .before = before ? args.plain_of_type("before", before, y.dtype()) : nullptr},
                               false);
}

void CudaBackend::linear_backward_input_activation(Activation kind, const Tensor& dy, const Tensor& weight,
                                                   const Tensor& before, const Tensor& dx) {
  constexpr const char* operation = "linear_backward_input_activation";
  require_alike(operation, "before", before, dx);
  const Operands args{operation, device()};
  const auto [rows, in, out] = linear_sizes(operation, "dx", dx, "dy", dy, weight);
  if (gelu_fits(kind, dy, dx) && rows > 0 && in > 0 && out > 0) {
    const Tensor w = in_type(weight, dy.dtype());
    launch();
    if (matmul_->try_multiply(
            rows, in, out, dy.dtype(), {args.plain_of_type("dy", dy, dy.dtype()), out}, {w.raw(), in},
            dx.dtype(), args.plain_of_type("dx", dx, dx.dtype()),
            {.kind = Epilogue::Kind::gelu_slope, .before = args.plain_of_type("before", before, dx.dtype())},
            false))
      return;
  }
  Backend::linear_backward_input_activation(kind, dy, weight, before, dx);
}

}  // namespace lockstep::kernels
