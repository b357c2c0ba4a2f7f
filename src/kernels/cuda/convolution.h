// Convolutions by cuDNN: a plan for each problem, which is a graph in channels last if cuDNN has one that our
// rules allow, and otherwise an algorithm of its older API. Volumes have graphs in both layouts, and no
// algorithms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cuda/fused_graph.h"
#include "kernels/cuda/libraries.h"
#include "kernels/plan_cache.h"
#include "lockstep/ops/convolution.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::kernels {

using ops::ConvolutionPass;

/// Everything that the choice of a plan depends on. x, weights and y have one type and one layout.
struct CudnnConvolution {
  ConvolutionPass pass = ConvolutionPass::forward;
  ops::ConvolutionSizes sizes;
  DType dtype = DType::float32;
  bool channels_last = false;  ///< weights then are [O, (kd,) kh, kw, C / groups]
  bool bias = false;           ///< forward adds a float32 bias
  bool residual = false;       ///< forward adds a tensor like y

  std::size_t hash() const;
  bool operator==(const CudnnConvolution&) const = default;
};

/// The graph of a problem. Its sums are float32, and it rounds once, after all additions.
FusedGraph convolution_graph(const CudnnConvolution& problem);
/// The plans that give the same bits every time and keep the precision of the type.
PlanRules convolution_rules(DType dtype);

class ConvolutionAlgorithm;  // of the older API

/// How cuDNN computes a problem: by a graph or by an algorithm. All tensors are aligned to 16 bytes.
struct ConvolutionPlan {
  ConvolutionPlan();
  ~ConvolutionPlan();

  std::unique_ptr<FusedGraph> graph;
  std::unique_ptr<ConvolutionAlgorithm> algorithm;
  bool channels_last = false;  ///< the layout of the tensors; it may not be that of the problem
  bool adds_bias = false, adds_residual = false;  ///< otherwise the caller adds it
  std::size_t workspace_bytes = 0;

  explicit operator bool() const { return graph || algorithm; }
};

/// Plans by problem.
class Convolutions {
 public:
  Convolutions(int device, cudaStream_t stream);
  ~Convolutions();
  Convolutions(const Convolutions&) = delete;
  Convolutions& operator=(const Convolutions&) = delete;

  /// A plan in the problem's layout if there is one, otherwise in the other. Throws FailureError if there is
  /// none.
  const ConvolutionPlan& plan(const CudnnConvolution& problem);
  /// A plan for `parts` times the images, by the engine and the knobs of the problem's plan, so that each
  /// part gets the same bits. Null: cuDNN has none.
  const ConvolutionPlan* plan_of_parts(const CudnnConvolution& problem, int parts);
  /// The pass writes its result and reads the rest. bias and residual: null unless the plan adds them.
  struct Addresses {
    void *x = nullptr, *weight = nullptr, *y = nullptr, *bias = nullptr, *residual = nullptr;
  };
  void run(const ConvolutionPlan& plan, const Addresses& at, void* workspace);

 private:
  struct Key {
    CudnnConvolution problem;
    int parts;
    std::size_t hash() const;
    bool operator==(const Key&) const = default;
  };
  std::unique_ptr<ConvolutionPlan> new_plan(CudnnConvolution problem);
  std::unique_ptr<ConvolutionPlan> new_plan_in_layout(const CudnnConvolution& problem);
  std::unique_ptr<ConvolutionPlan> new_graph(const CudnnConvolution& problem, const CudnnEngine* engine);

  int device_;
  Owned<cudnnHandle_t, cudnnDestroy> handle_;
  CudnnDescriptor properties_;
  PlanCache<Key, ConvolutionPlan> plans_;  // a plan may be false: cuDNN has none
};

}  // namespace lockstep::kernels
