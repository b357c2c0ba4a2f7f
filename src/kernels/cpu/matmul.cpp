// Dense layers.
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/native_bfloat16.h"
#include "lockstep/ops/linear.h"

namespace lockstep::kernels {
namespace {

void linear(CpuBackend& cpu, const ops::Linear& op) {
  const auto [rows, in, out] = op.sizes();
  cpu.gemm().rows(rows, out, in, {op.x.data<float>(), in}, {op.weight.data<float>(), in, true},
                  op.bias ? op.bias.data<float>() : nullptr, op.y.data<float>());
}

void linear_backward_input(CpuBackend& cpu, const ops::LinearBackwardInput& op) {
  const auto [rows, in, out] = op.sizes();
  cpu.gemm().rows(rows, in, out, {op.dy.data<float>(), out}, {op.weight.data<float>(), in}, nullptr,
                  op.dx.data<float>());
}

void product_of_gradients(CpuBackend& cpu, const ops::LinearBackwardWeight& op) {
  const auto [rows, in, out] = op.sizes();
  cpu.gemm().sum_of_outer(out, in, rows, op.dy.data<float>(), op.x.data<float>(), op.accumulate,
                          op.dweight.data<float>());
}

void linear_backward_weight(CpuBackend& cpu, const ops::LinearBackwardWeight& op) {
  product<&product_of_gradients>(cpu, op);
  if (op.dbias) cpu.run(ops::SumRows{op.dy, op.dbias, op.accumulate});
}

}  // namespace

void enter_matmul(CpuBackend& cpu) {
  enter_product<&linear>(cpu);
  enter_product<&linear_backward_input>(cpu);
  cpu.enter<&linear_backward_weight>();
}

}  // namespace lockstep::kernels
