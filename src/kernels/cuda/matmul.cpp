// Dense layers, and products of matrices one next to the other. Activations are float32 or bf16; weights are
// converted to their type on the way, and weight gradients are float32 sums of products of it.
#include "lockstep/ops/matmul.h"
#include "kernels/compositions.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/matmul_plan.h"
#include "lockstep/ops/linear.h"

namespace lockstep::kernels {
namespace {

/// Whether cuBLASLt's GELU may stand for ours. It is an approximation that bf16's rounding covers, reads rows
/// of packs, and is that by tanh; its ReLU hides a NaN, which ours keeps for the loss to show.
bool gelu_fits(ops::Activation kind, const Tensor& to) {
  return kind == ops::Activation::gelu_tanh && to.dtype() == DType::bfloat16 && to.size(-1) % 8 == 0;
}

bool is_empty(const ops::LinearSizes& sizes) { return sizes.rows == 0 || sizes.in == 0 || sizes.out == 0; }

void linear(CudaBackend& gpu, const ops::Linear& op) {
  const auto [rows, in, out] = op.sizes();
  if (rows == 0 || out == 0) return;
  if (in == 0) {
    gpu.fill(op.y, 0);
    if (op.bias) gpu.run(ops::add_rows(op.y, op.bias, op.y));
    return;
  }
  const Tensor w = gpu.in_type(op.weight, op.x.dtype()),
               b = op.bias ? gpu.in_type(op.bias, op.y.dtype()) : Tensor();
  Epilogue epilogue;
  if (b) epilogue = {.kind = Epilogue::Kind::bias, .bias = b.raw()};
  gpu.matmul().multiply(rows, out, in, op.x.dtype(), {op.x.raw(), in}, {w.raw(), in, true}, op.y.dtype(),
                        op.y.raw(), epilogue, false);
}

void linear_backward_input(CudaBackend& gpu, const ops::LinearBackwardInput& op) {
  const auto [rows, in, out] = op.sizes();
  if (rows == 0 || in == 0) return;
  if (out == 0) return gpu.fill(op.dx, 0);
  const Tensor w = gpu.in_type(op.weight, op.dy.dtype());
  gpu.matmul().multiply(rows, in, out, op.dy.dtype(), {op.dy.raw(), out}, {w.raw(), in}, op.dx.dtype(),
                        op.dx.raw(), {}, false);
}

/// Both gradients in one, by an epilogue; false where there is none for it.
bool with_bias_gradient(CudaBackend& gpu, const ops::LinearBackwardWeight& op) {
  const auto [rows, in, out] = op.sizes();
  if (!op.dbias || op.x.dtype() != DType::bfloat16 || is_empty(op.sizes())) return false;
  // The epilogue overwrites.
  const Tensor sums = op.accumulate ? gpu.empty(op.dbias.shape()) : op.dbias;
  if (!gpu.matmul().try_multiply(out, in, rows, op.x.dtype(), {op.dy.raw(), out, true}, {op.x.raw(), in},
                                 DType::float32, op.dweight.raw(),
                                 {.kind = Epilogue::Kind::bias_gradient, .bias = sums.raw()}, op.accumulate))
    return false;
  if (op.accumulate) gpu.run(ops::Accumulate{op.dbias, sums});
  return true;
}

void linear_backward_weight(CudaBackend& gpu, const ops::LinearBackwardWeight& op) {
  if (with_bias_gradient(gpu, op)) return;
  const auto [rows, in, out] = op.sizes();
  if (!is_empty(op.sizes())) {
    gpu.matmul().multiply(out, in, rows, op.x.dtype(), {op.dy.raw(), out, true}, {op.x.raw(), in},
                          DType::float32, op.dweight.raw(), {}, op.accumulate);
  } else if (!op.accumulate) {
    gpu.fill(op.dweight, 0);
  }
  if (op.dbias) gpu.run(ops::SumRows{op.dy, op.dbias, op.accumulate});
}

void matmul(CudaBackend& gpu, const ops::MatMul& op) {
  const ops::MatMulSizes sizes = op.sizes();
  if (op.y.numel() == 0) return;
  if (sizes.sums_nothing()) {
    if (!op.accumulate) gpu.fill(op.y, 0);
    return;
  }
  const DType in = op.a.dtype();
  const Tensor b = gpu.in_type(op.b, in);
  const std::int64_t terms = sizes.summed.places();
  // A sum is rounded once.
  const bool in_place = terms == 1 || op.y.dtype() == DType::float32;
  const Tensor y = in_place ? op.y : gpu.empty(op.y.shape());
  // The last dimension is that of a call; the places of the others follow one another.
  ops::MatMulSizes::Dimensions others = sizes.each;
  ops::MatMulSizes::Dimension within;
  if (others.count > 0) within = others.dimension[static_cast<std::size_t>(--others.count)];
  const auto at = [](const Tensor& tensor, std::int64_t element) {
    return static_cast<void*>(static_cast<char*>(tensor.raw()) +
                              static_cast<std::size_t>(element) * bytes_of(tensor.dtype()));
  };
  for (std::int64_t place = 0, places = others.places(); place < places; ++place) {
    for (std::int64_t term = 0; term < terms; ++term) {
      for (std::int64_t first = 0; first < within.extent; first += Batch::most) {
        const auto each = others.at(place), summed = sizes.summed.at(term);
        gpu.matmul().multiply(sizes.m, sizes.n, sizes.k, in,
                              {at(op.a, each.a + summed.a + first * within.a), op.a.size(-1),
                               op.transposed == ops::Transposed::a, within.a},
                              {at(b, each.b + summed.b + first * within.b), b.size(-1),
                               op.transposed == ops::Transposed::b, within.b},
                              y.dtype(), at(y, each.y + first * within.y), {}, op.accumulate || term > 0,
                              {std::min(Batch::most, within.extent - first), within.y});
      }
    }
  }
  if (!in_place) gpu.copy(y, op.y);
}

// With an epilogue where there is one for it.

void activated_linear(CudaBackend& gpu, const ops::LinearActivation& op) {
  const auto [rows, in, out] = op.sizes();
  if (gelu_fits(op.kind, op.y) && !is_empty(op.sizes())) {
    const Tensor w = gpu.in_type(op.weight, op.x.dtype()),
                 b = op.bias ? gpu.in_type(op.bias, op.y.dtype()) : Tensor();
    if (gpu.matmul().try_multiply(
            rows, out, in, op.x.dtype(), {op.x.raw(), in}, {w.raw(), in, true}, op.y.dtype(), op.y.raw(),
            {.kind = Epilogue::Kind::gelu, .bias = b.raw(), .before = op.before.raw()}, false))
      return;
  }
  linear_activation(gpu, op);
}

void input_gradient_before_activation(CudaBackend& gpu, const ops::LinearBackwardInputActivation& op) {
  const auto [rows, in, out] = op.sizes();
  if (gelu_fits(op.kind, op.dx) && !is_empty(op.sizes())) {
    const Tensor w = gpu.in_type(op.weight, op.dy.dtype());
    if (gpu.matmul().try_multiply(rows, in, out, op.dy.dtype(), {op.dy.raw(), out}, {w.raw(), in},
                                  op.dx.dtype(), op.dx.raw(),
                                  {.kind = Epilogue::Kind::gelu_slope, .before = op.before.raw()}, false))
      return;
  }
  linear_backward_input_activation(gpu, op);
}

}  // namespace

void enter_matmul(CudaBackend& gpu) {
  gpu.enter<&linear, &linear_backward_input, &linear_backward_weight, &matmul, &activated_linear,
            &input_gradient_before_activation>();
}

}  // namespace lockstep::kernels
