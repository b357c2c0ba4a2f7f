#include "kernels/cpu/native_bfloat16.h"

#include "lockstep/ops/elementwise.h"

namespace lockstep::kernels {
namespace {

bool is_bf16(const Tensor& tensor) { return tensor.dtype() == DType::bfloat16; }

}  // namespace

NativeBfloat16::NativeBfloat16(CpuBackend& backend)
    : backend_(backend), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

bool NativeBfloat16::is_here() {
  const auto here = static_cast<unsigned>(dnnl::get_effective_cpu_isa()),
             needed = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (here & needed) == needed;
}

Tensor NativeBfloat16::bytes(std::int64_t count) { return backend_.empty({count}, DType::uint8); }

/// Itself where it is bf16.
Tensor NativeBfloat16::rounded(const Tensor& weight) {
  if (weight.dtype() == DType::bfloat16) return weight;
  const Tensor made = backend_.empty(weight.shape(), DType::bfloat16);
  backend_.copy(weight, made);
  return made;
}

bool NativeBfloat16::run(const DenseProblem& problem, const Tensor& inner, const Tensor& weight,
                         const Tensor& bias, const Tensor& outer) {
  if (problem.rows == 0 || problem.in == 0 || problem.out == 0) return false;
  DensePlan& plan = dense_.plan(problem, engine_);
  if (!plan.usable()) return false;
  const Tensor packed = bytes(plan.packed_bytes()), scratchpad = bytes(plan.scratchpad_bytes());
  plan.run(stream_, inner.raw(), weight.raw(), bias ? bias.data<float>() : nullptr, outer.raw(), packed.raw(),
           scratchpad.raw());
  return true;
}

bool NativeBfloat16::run(const ops::Linear& op) {
  if (!is_bf16(op.x)) return false;
  const auto [rows, in, out] = op.sizes();
  return run({.pass = DensePass::forward,
              .rows = rows,
              .in = in,
              .out = out,
              .bias = static_cast<bool>(op.bias),
              .bf16 = true},
             op.x, rounded(op.weight), op.bias, op.y);
}

bool NativeBfloat16::run(const ops::LinearBackwardInput& op) {
  if (!is_bf16(op.dy)) return false;
  const auto [rows, in, out] = op.sizes();
  return run({.pass = DensePass::backward_input, .rows = rows, .in = in, .out = out, .bf16 = true}, op.dx,
             rounded(op.weight), {}, op.dy);
}

bool NativeBfloat16::run(const ops::LinearBackwardWeight& op) {
  if (!is_bf16(op.x)) return false;
  const auto [rows, in, out] = op.sizes();
  return run({.pass = DensePass::backward_weight,
              .rows = rows,
              .in = in,
              .out = out,
              .accumulate = op.accumulate,
              .bf16 = true},
             op.x, op.dweight, {}, op.dy);
}

/// As a dense layer's, where it is one product: [rows, in] by [out, in] of any two gives the third.
bool NativeBfloat16::run(const ops::MatMul& op) {
  const ops::MatMulSizes sizes = op.sizes();
  const bool of_rows = op.transposed == ops::Transposed::a;
  if (!is_bf16(op.a) || is_bf16(op.y) == of_rows || sizes.each.places() * sizes.summed.places() != 1 ||
      (op.accumulate && !of_rows))
    return false;
  const std::int64_t m = sizes.m, n = sizes.n, k = sizes.k;
  const Tensor b = rounded(op.b);
  switch (op.transposed) {
    case ops::Transposed::none:
      return run({.pass = DensePass::backward_input, .rows = m, .in = n, .out = k, .bf16 = true}, op.y, b, {},
                 op.a);
    case ops::Transposed::b:
      return run({.pass = DensePass::forward, .rows = m, .in = k, .out = n, .bf16 = true}, op.a, b, {}, op.y);
    case ops::Transposed::a:
      return run({.pass = DensePass::backward_weight,
                  .rows = k,
                  .in = n,
                  .out = m,
                  .accumulate = op.accumulate,
                  .bf16 = true},
                 b, op.y, {}, op.a);
  }
  return false;
}

bool NativeBfloat16::run(ConvolutionProblem problem, const Tensor& x, const Tensor& weight,
                         const Tensor& bias, const Tensor& y) {
  if (problem.images == 0) return false;
  problem.bias = static_cast<bool>(bias);
  problem.bf16 = true;
  ConvolutionPlan& plan = convolutions_.plan(problem, engine_, backend_.threads());
  if (!plan.usable()) return false;
  const Tensor packed = backend_.empty({plan.packed_floats()}, DType::float32),
               scratchpad = backend_.empty({plan.scratchpad_floats()}, DType::float32);
  plan.run(stream_, x.raw(), weight.raw(), bias ? bias.data<float>() : nullptr, y.raw(), packed.data<float>(),
           scratchpad.data<float>());
  return true;
}

bool NativeBfloat16::run(const ops::Convolution& op) {
  return is_bf16(op.x) && run(convolution_problem(op), op.x, rounded(op.weight), op.bias, op.y);
}

bool NativeBfloat16::run(const ops::ConvolutionBackwardInput& op) {
  return is_bf16(op.dy) && run(convolution_problem(op), op.dx, rounded(op.weight), {}, op.dy);
}

bool NativeBfloat16::run(const ops::ConvolutionBackwardWeight& op) {
  if (!is_bf16(op.x)) return false;
  const ConvolutionProblem problem = convolution_problem(op);
  if (!op.accumulate) return run(problem, op.x, op.dweight, {}, op.dy);
  const Tensor made = backend_.empty(op.dweight.shape());
  if (!run(problem, op.x, made, {}, op.dy)) return false;
  backend_.run(ops::Accumulate{op.dweight, made});
  return true;
}

}  // namespace lockstep::kernels
