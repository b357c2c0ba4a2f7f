// One product of a dense layer, prepared for one problem: oneDNN's primitive, and how the weight must be
// packed. For bf16, whose plain weights are up to four times slower than packed ones; float32 is there so
// that the same lines can be tested on any processor.
#pragma once

#include <cstdint>
#include <dnnl.hpp>
#include <memory>
#include <unordered_map>

#include "kernels/cpu/convolution_plan.h"

namespace lockstep::kernels {

enum class DensePass : std::int64_t { forward, backward_input, backward_weight };

struct DenseProblem {
  DensePass pass = DensePass::forward;
  std::int64_t rows = 0, in = 0, out = 0;  ///< none is 0
  bool bias = false;                       ///< forward
  bool accumulate = false;                 ///< backward_weight: adds to the gradient
  bool bf16 = false;  ///< activations and weight; a bias and a weight gradient are float32

  bool operator==(const DenseProblem&) const = default;
};

class DensePlan {
 public:
  DensePlan(const DenseProblem& problem, const dnnl::engine& engine);

  /// Whether oneDNN has a fast way.
  bool usable() const { return static_cast<bool>(product_); }
  /// Bytes of the packed weight; 0: it is used plain.
  std::int64_t packed_bytes() const { return packed_bytes_; }
  std::int64_t scratchpad_bytes() const { return scratchpad_bytes_; }
  const char* implementation() const { return implementation_; }

  /// `inner`: x or dx, `outer`: y or dy, `weight`: the weight or its gradient. What the pass makes is
  /// written, the rest is read. Working memory as stated above.
  void run(const dnnl::stream& stream, const void* inner, const void* weight, const float* bias,
           const void* outer, void* packed, void* scratchpad);

 private:
  template <class PrimitiveDesc, class Primitive>
  void keep(const PrimitiveDesc& desc, const Primitive& primitive);
  void pack(const dnnl::memory::desc& plain, const dnnl::memory::desc& wanted, const dnnl::engine& engine);

  bool bias_;
  std::int64_t packed_bytes_ = 0, scratchpad_bytes_ = 0;
  const char* implementation_ = "";
  BoundPrimitive product_;  // arguments: inner, weight, outer, scratchpad, bias
  BoundPrimitive packing_;
};

/// Plans by problem. Looking one up allocates nothing.
struct DenseCache {
  struct Hash {
    std::size_t operator()(const DenseProblem& problem) const noexcept;
  };
  std::unordered_map<DenseProblem, std::unique_ptr<DensePlan>, Hash> plans;

  DensePlan& plan(const DenseProblem& problem, const dnnl::engine& engine);
};

}  // namespace lockstep::kernels
