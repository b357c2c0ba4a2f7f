// Convolutions by cuDNN: descriptors and an algorithm for each problem.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cuda/libraries.h"
#include "kernels/plan_cache.h"
#include "lockstep/ops/convolution.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::kernels {

using ops::ConvolutionPass;

/// Everything that the choice of an algorithm depends on. x, weights and y have one type and one layout.
struct CudnnConvolution {
  ConvolutionPass pass = ConvolutionPass::forward;
  ops::ConvolutionSizes sizes;
  DType dtype = DType::float32;
  bool channels_last = false;  ///< weights then are [O, kh, kw, C / groups]

  std::size_t hash() const;
  bool operator==(const CudnnConvolution&) const = default;
};

/// Algorithms that give the same bits every time, in float32 without TF32.
class Convolutions {
 public:
  Convolutions(int device, cudaStream_t stream);
  ~Convolutions();
  Convolutions(const Convolutions&) = delete;
  Convolutions& operator=(const Convolutions&) = delete;

  /// The problem in a layout for which cuDNN has an algorithm: its own layout if possible. Throws
  /// FailureError if there is none.
  CudnnConvolution in_supported_layout(const CudnnConvolution& problem);
  /// Working memory that run() needs, in a supported layout.
  std::size_t workspace_bytes(const CudnnConvolution& problem);
  /// The pass writes its result and reads the rest.
  void run(const CudnnConvolution& problem, void* x, void* weight, void* y, void* workspace);

 private:
  struct Plan;
  Plan& plan_for(const CudnnConvolution& problem);

  int device_;
  Owned<cudnnHandle_t, cudnnDestroy> handle_;
  PlanCache<CudnnConvolution, Plan> plans_;
};

}  // namespace lockstep::kernels
