// One oneDNN convolution, prepared for one problem: primitive, memory objects, and how the weights must be
// packed.
#pragma once

#include <array>
#include <cstdint>
#include <dnnl.hpp>
#include <string>

#include "kernels/plan_cache.h"
#include "lockstep/ops/convolution.h"

namespace lockstep::kernels {

using ops::ConvolutionPass;

/// Everything that a primitive depends on, except the backend's threads.
struct ConvolutionProblem {
  ConvolutionPass pass = ConvolutionPass::forward;
  ops::ConvolutionSizes sizes;
  int x_block = 1, y_block = 1;  ///< channel blocks of the caller's activations
  bool bias = false;
  bool bf16 = false;  ///< activations and weights; a bias and a weight gradient are float32

  std::size_t hash() const;
  bool operator==(const ConvolutionProblem&) const = default;
};

/// Checks every shape. `bf16` is not set.
ConvolutionProblem convolution_problem(const ops::Convolution& op);
ConvolutionProblem convolution_problem(const ops::ConvolutionBackwardInput& op);
ConvolutionProblem convolution_problem(const ops::ConvolutionBackwardWeight& op);

/// A primitive and its arguments, bound again for each run. Creation allocates; binding does not.
class BoundPrimitive {
 public:
  BoundPrimitive() = default;
  explicit BoundPrimitive(const dnnl::primitive& primitive) : primitive_(primitive) {}

  void add_argument(int name, const dnnl::memory::desc& desc, const dnnl::engine& engine);
  /// The argument added as number `index` is at `data`: 64-byte aligned where oneDNN wants its own layout.
  void bind(std::size_t index, const void* data);
  void run(const dnnl::stream& stream);

  explicit operator bool() const { return static_cast<bool>(primitive_); }

 private:
  dnnl::primitive primitive_;
  std::array<dnnl::memory, 5> memories_;
  std::array<dnnl_exec_arg_t, 5> arguments_{};
  std::size_t count_ = 0;
};

/// oneDNN's fastest kernel for a problem. If it has no direct kernel for the caller's channel blocks, the
/// plan uses others, and the caller converts. An image of x, y or their gradients never depends on the batch
/// around it.
class ConvolutionPlan {
 public:
  /// `threads`: the setting of OpenMP now and in every run; the bits of weight gradients depend on it.
  ConvolutionPlan(const ConvolutionProblem& problem, const dnnl::engine& engine, int threads);

  int x_block() const { return x_block_; }
  int y_block() const { return y_block_; }
  /// The number of floats of the packed weights (or weight gradient); 0: they are used plain.
  std::int64_t packed_floats() const { return packed_floats_; }
  std::int64_t scratchpad_floats() const { return scratchpad_floats_; }
  /// Whether oneDNN has a fast kernel for a bf16 problem in this layout. (Float32 always has one.)
  bool usable() const { return static_cast<bool>(convolution_); }
  /// oneDNN's name of the implementation.
  const std::string& implementation() const { return implementation_; }

  /// Activations in x_block() and y_block(); `bias` only in a forward problem that has one. The pass writes
  /// its result and reads the rest. `packed` and `scratchpad`: working memory as stated above.
  void run(const dnnl::stream& stream, void* x, void* weight, const float* bias, void* y, float* packed,
           float* scratchpad);

 private:
  struct Attempt;
  static Attempt attempt(const ConvolutionProblem& problem, const dnnl::engine& engine, int x_block,
                         int y_block);
  static Attempt best_attempt(const ConvolutionProblem& problem, const dnnl::engine& engine, int threads);

  ConvolutionPass pass_;
  bool bias_;
  int x_block_ = 1, y_block_ = 1;
  std::int64_t packed_floats_ = 0, scratchpad_floats_ = 0;
  std::int64_t runs_ = 1;                  // of the primitive: one for the batch, or one for each image
  std::size_t x_bytes_ = 0, y_bytes_ = 0;  // of one run
  std::string implementation_;
  BoundPrimitive convolution_;  // arguments: x, weight, y, scratchpad, bias
  BoundPrimitive packing_;      // plain to packed weights, or back for a weight gradient
};

struct ConvolutionCache : PlanCache<ConvolutionProblem, ConvolutionPlan> {
  ConvolutionPlan& plan(const ConvolutionProblem& problem, const dnnl::engine& engine, int threads);
};

/// Channels of one block in the activations of oneDNN's vector code: 16 with AVX-512, else 8.
int native_channel_block();

}  // namespace lockstep::kernels
