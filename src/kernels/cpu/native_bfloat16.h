// Products and convolutions of bf16 operands as the processor makes them (AVX512-BF16, AMX), summed in
// float32, through oneDNN.
#pragma once

#include <dnnl.hpp>

#include "kernels/cpu/convolution_plan.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/dense_plan.h"
#include "lockstep/ops/convolution.h"
#include "lockstep/ops/linear.h"
#include "lockstep/ops/matmul.h"

namespace lockstep::kernels {

/// Each run() returns whether it was done: not where activations are not bf16, or oneDNN has no fast way for
/// it. Then nothing was touched.
class NativeBfloat16 {
 public:
  /// Memory and threads are the backend's.
  explicit NativeBfloat16(CpuBackend& backend);

  /// Whether this processor multiplies bf16 faster than float32.
  static bool is_here();

  bool run(const ops::Linear& op);
  bool run(const ops::LinearBackwardInput& op);
  bool run(const ops::LinearBackwardWeight& op);
  bool run(const ops::MatMul& op);
  bool run(const ops::Convolution& op);
  bool run(const ops::ConvolutionBackwardInput& op);
  bool run(const ops::ConvolutionBackwardWeight& op);

 private:
  Tensor bytes(std::int64_t count);
  Tensor rounded(const Tensor& weight);
  bool run(const DenseProblem& problem, const Tensor& inner, const Tensor& weight, const Tensor& bias,
           const Tensor& outer);
  bool run(ConvolutionProblem problem, const Tensor& x, const Tensor& weight, const Tensor& bias,
           const Tensor& y);

  CpuBackend& backend_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  DenseCache dense_;
  ConvolutionCache convolutions_;
};

/// A product by its float32 function: bf16 operands go to the processor where it can, and by float32 copies
/// else.
template <auto function, class Operation>
void product(CpuBackend& cpu, const Operation& op) {
  if (!ops::AnyOperation(op).has_bf16()) return function(cpu, op);
  if (cpu.native_bfloat16() && cpu.native_bfloat16()->run(op)) return;
  run_on_float32_copies<function>(cpu, op);
}

template <auto function, class Operation>
void enter_product(CpuBackend& cpu, void (*)(CpuBackend&, const Operation&)) {
  cpu.enter<&product<function, Operation>>();
}
/// Enters it.
template <auto function>
void enter_product(CpuBackend& cpu) {
  enter_product<function>(cpu, function);
}

}  // namespace lockstep::kernels
