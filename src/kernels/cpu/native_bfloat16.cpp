#include "kernels/cpu/native_bfloat16.h"

#include "kernels/cpu/check.h"
#include "kernels/problems.h"

namespace lockstep::kernels {
namespace {

bool are_bf16(const Tensor& a, const Tensor& b) {
  return a.dtype() == DType::bfloat16 && b.dtype() == DType::bfloat16;
}

}  // namespace

NativeBfloat16::NativeBfloat16(CpuBackend& backend)
    : backend_(backend), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

bool NativeBfloat16::is_here() {
  const auto here = static_cast<unsigned>(dnnl::get_effective_cpu_isa()),
             needed = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (here & needed) == needed;
}

Tensor NativeBfloat16::bytes(std::int64_t count) { return backend_.empty({count}, DType::uint8, 1); }

/// Itself where it is bf16.
Tensor NativeBfloat16::rounded(const Tensor& weight) {
  if (weight.dtype() == DType::bfloat16) return weight;
  const Tensor made = backend_.empty(weight.shape(), DType::bfloat16, 1);
  backend_.copy(weight, made);
  return made;
}

bool NativeBfloat16::run(const DenseProblem& problem, const Tensor& inner, const Tensor& weight,
                         const Tensor& bias, const Tensor& outer) {
  if (problem.rows == 0 || problem.in == 0 || problem.out == 0) return false;
  backend_.prepare();
  DensePlan& plan = dense_.plan(problem, engine_);
  if (!plan.usable()) return false;
  const Tensor packed = bytes(plan.packed_bytes()), scratchpad = bytes(plan.scratchpad_bytes());
  plan.run(stream_, inner.raw(), weight.raw(), bias ? bias.data<float>() : nullptr, outer.raw(), packed.raw(),
           scratchpad.raw());
  return true;
}

bool NativeBfloat16::linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) {
  if (!is_here() || !are_bf16(x, y) || (bias && bias.dtype() != DType::float32)) return false;
  const auto [rows, in, out] = linear_sizes("linear", "x", x, "y", y, weight);
  if (bias) require_shape("linear", "the bias", bias, {out});
  return run({.pass = DensePass::forward,
              .rows = rows,
              .in = in,
              .out = out,
              .bias = static_cast<bool>(bias),
              .bf16 = true},
             x, rounded(weight), bias, y);
}

bool NativeBfloat16::linear_backward_input(const Tensor& dy, const Tensor& weight, const Tensor& dx) {
  if (!is_here() || !are_bf16(dy, dx)) return false;
  const auto [rows, in, out] = linear_sizes("linear_backward_input", "dx", dx, "dy", dy, weight);
  return run({.pass = DensePass::backward_input, .rows = rows, .in = in, .out = out, .bf16 = true}, dx,
             rounded(weight), {}, dy);
}

bool NativeBfloat16::linear_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dweight,
                                            bool accumulate) {
  if (!is_here() || !are_bf16(x, dy)) return false;
  const auto [rows, in, out] = linear_sizes("linear_backward_weight", "x", x, "dy", dy, dweight);
  plain_floats("linear_backward_weight", "dweight", dweight);
  return run({.pass = DensePass::backward_weight,
              .rows = rows,
              .in = in,
              .out = out,
              .accumulate = accumulate,
              .bf16 = true},
             x, dweight, {}, dy);
}

bool NativeBfloat16::run(ConvolutionProblem problem, const Tensor& x, const Tensor& weight,
                         const Tensor& bias, const Tensor& y) {
  if (problem.images == 0) return false;
  problem.bias = static_cast<bool>(bias);
  problem.bf16 = true;
  backend_.prepare();
  ConvolutionPlan& plan = convolutions_.plan(problem, engine_, backend_.threads());
  if (!plan.usable()) return false;
  const Tensor packed = backend_.empty({plan.packed_floats()}, DType::float32, 1),
               scratchpad = backend_.empty({plan.scratchpad_floats()}, DType::float32, 1);
  plan.run(stream_, x.raw(), weight.raw(), bias ? bias.data<float>() : nullptr, y.raw(), packed.data<float>(),
           scratchpad.data<float>());
  return true;
}

bool NativeBfloat16::convolution(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                 const Convolution& geometry, const Tensor& y) {
  if (!is_here() || !are_bf16(x, y) || (bias && bias.dtype() != DType::float32)) return false;
  const ConvolutionProblem problem =
      convolution_problem("convolution", ConvolutionPass::forward, x, weight, geometry, "y", y);
  if (bias) require_shape("convolution", "bias", bias, {problem.out_channels});
  return run(problem, x, rounded(weight), bias, y);
}

bool NativeBfloat16::convolution_backward_input(const Tensor& dy, const Tensor& weight,
                                                const Convolution& geometry, const Tensor& dx) {
  if (!is_here() || !are_bf16(dy, dx)) return false;
  const ConvolutionProblem problem = convolution_problem(
      "convolution_backward_input", ConvolutionPass::backward_input, dx, weight, geometry, "dy", dy);
  return run(problem, dx, rounded(weight), {}, dy);
}

bool NativeBfloat16::convolution_backward_weight(const Tensor& x, const Tensor& dy,
                                                 const Convolution& geometry, const Tensor& dweight,
                                                 bool accumulate) {
  if (!is_here() || !are_bf16(x, dy)) return false;
  const ConvolutionProblem problem = convolution_problem(
      "convolution_backward_weight", ConvolutionPass::backward_weight, x, dweight, geometry, "dy", dy);
  floats("convolution_backward_weight", "dweight", dweight);
  if (!accumulate) return run(problem, x, dweight, {}, dy);
  const Tensor made = backend_.empty(dweight.shape(), DType::float32, 1);
  if (!run(problem, x, made, {}, dy)) return false;
  backend_.accumulate(dweight, made);
  return true;
}

}  // namespace lockstep::kernels
