// Convolutions by cuDNN: descriptors and an algorithm for each problem.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "kernels/cuda/libraries.h"
#include "lockstep/ops/convolution.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::kernels {

enum class CudnnPass : std::int64_t { forward, backward_input, backward_weight };

/// Everything that the choice of an algorithm depends on. x, weights and y have one type and one layout.
struct CudnnConvolution {
  CudnnPass pass = CudnnPass::forward;
  ops::ConvolutionSizes sizes;
  DType dtype = DType::float32;
  bool channels_last = false;  ///< weights then are [O, kh, kw, C / groups]
};

/// Algorithms that give the same bits every time, in float32 without TF32.
class Convolutions {
 public:
  Convolutions(int device, cudaStream_t stream);
  ~Convolutions();
  Convolutions(const Convolutions&) = delete;
  Convolutions& operator=(const Convolutions&) = delete;

  /// The problem in the layout in which cuDNN has an algorithm for it: its own if it can be. Throws
  /// FailureError if there is none.
  CudnnConvolution settled(const CudnnConvolution& problem);
  /// Working memory that run() needs, for a settled problem.
  std::size_t workspace_bytes(const CudnnConvolution& problem);
  /// What the pass makes is written, the rest is read.
  void run(const CudnnConvolution& problem, void* x, void* weight, void* y, void* workspace);

 private:
  struct Plan;
  struct Hash {
    std::size_t operator()(const CudnnConvolution& problem) const noexcept;
  };
  struct Same {
    bool operator()(const CudnnConvolution& a, const CudnnConvolution& b) const noexcept;
  };
  Plan& plan_for(const CudnnConvolution& problem);

  int device_;
  cudnnHandle_t handle_ = nullptr;
  std::unordered_map<CudnnConvolution, std::unique_ptr<Plan>, Hash, Same> plans_;
};

}  // namespace lockstep::kernels
