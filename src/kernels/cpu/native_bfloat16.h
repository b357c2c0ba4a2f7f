// Products and convolutions of bf16 operands as the processor makes them (AVX512-BF16, AMX), summed in
// float32, through oneDNN.
#pragma once

#include <dnnl.hpp>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/dense_plan.h"

namespace lockstep::kernels {

/// Each operation is Backend's, and returns whether it was done: not where operands are not all bf16, the
/// processor cannot, or oneDNN has no fast way for it. Then nothing was touched.
class NativeBfloat16 {
 public:
  /// Memory and threads are the backend's.
  explicit NativeBfloat16(CpuBackend& backend);

  /// Whether this processor multiplies bf16 faster than float32.
  static bool is_here();

  bool linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y);
  bool linear_backward_input(const Tensor& dy, const Tensor& weight, const Tensor& dx);
  bool linear_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dweight, bool accumulate);
  bool convolution(const Tensor& x, const Tensor& weight, const Tensor& bias, const Convolution& geometry,
                   const Tensor& y);
  bool convolution_backward_input(const Tensor& dy, const Tensor& weight, const Convolution& geometry,
                                  const Tensor& dx);
  bool convolution_backward_weight(const Tensor& x, const Tensor& dy, const Convolution& geometry,
                                   const Tensor& dweight, bool accumulate);

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

}  // namespace lockstep::kernels
