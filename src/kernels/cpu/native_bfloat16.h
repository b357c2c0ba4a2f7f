// Products and convolutions of bf16 operands by the processor's instructions (AVX512-BF16, AMX), summed in
// float32, through oneDNN. A dense layer's product has a plan for each problem: oneDNN's primitive, and how
// the weight must be packed, because plain bf16 weights are up to four times slower than packed ones. Plans
// in float32 exist so that the same lines can be tested on any processor.
#pragma once

#include <cstdint>
#include <dnnl.hpp>

#include "kernels/cpu/convolution.h"
#include "kernels/cpu/cpu_backend.h"
#include "lockstep/ops/convolution.h"
#include "ops/matmul.h"

namespace lockstep::kernels {

enum class DensePass : std::int64_t { forward, backward_input, backward_weight };

struct DenseProblem {
  DensePass pass = DensePass::forward;
  std::int64_t rows = 0, in = 0, out = 0;  ///< none is 0
  bool bias = false;                       ///< forward
  bool accumulate = false;                 ///< backward_weight: adds to the gradient
  bool bf16 = false;  ///< activations and weight; a bias and a weight gradient are float32

  std::size_t hash() const;
  bool operator==(const DenseProblem&) const = default;
};

class DensePlan {
 public:
  DensePlan(const DenseProblem& problem, const dnnl::engine& engine);

  /// Whether oneDNN has a fast kernel.
  bool usable() const { return static_cast<bool>(product_); }
  /// Bytes of the packed weight; 0: it is used plain.
  std::int64_t packed_bytes() const { return packed_bytes_; }
  std::int64_t scratchpad_bytes() const { return scratchpad_bytes_; }

  /// `inner`: x or dx, `outer`: y or dy, `weight`: the weight or its gradient. The pass writes its result and
  /// reads the rest. Working memory as stated above.
  void run(const dnnl::stream& stream, const void* inner, const void* weight, const float* bias,
           const void* outer, void* packed, void* scratchpad);

 private:
  template <class PrimitiveDesc, class Primitive>
  void keep(const PrimitiveDesc& desc, const Primitive& primitive);
  void pack(const dnnl::memory::desc& plain, const dnnl::memory::desc& packed, const dnnl::engine& engine);

  bool bias_;
  std::int64_t packed_bytes_ = 0, scratchpad_bytes_ = 0;
  BoundPrimitive product_;  // arguments: inner, weight, outer, scratchpad, bias
  BoundPrimitive packing_;
};

struct DenseCache : PlanCache<DenseProblem, DensePlan> {
  DensePlan& plan(const DenseProblem& problem, const dnnl::engine& engine);
};

/// Each run() returns false, without any effect, if activations are not bf16 or oneDNN has no fast kernel.
class NativeBfloat16 {
 public:
  /// Memory and threads are the backend's.
  explicit NativeBfloat16(CpuBackend& backend);

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

/// A product by its float32 function: bf16 operands go to the processor's instructions if it has them,
/// otherwise through float32 copies.
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
/// Enters such a product.
template <auto function>
void enter_product(CpuBackend& cpu) {
  enter_product<function>(cpu, function);
}

}  // namespace lockstep::kernels
