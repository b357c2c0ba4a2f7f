// Convolutions of 3 x 3 kernels at stride 1 by Winograd's minimal filtering, F(4 x 4, 3 x 3) (Lavin, Gray,
// "Fast algorithms for convolutional neural networks", 2016): a quarter of the multiplications of a direct
// convolution, as 36 matrix products between transforms. oneDNN 2.6 has it for AVX-512 alone, where its
// weight gradients depend on threads.
//
// Errors are 3 to 5 times those of a direct convolution: still near 1e-6 of the largest output.
// The bits of an image depend neither on the batch around it nor on threads; weight gradients not on threads.
#pragma once

#include <cstdint>

#include "kernels/cpu/convolution.h"

namespace lockstep::kernels {

class WinogradConvolution {
 public:
  /// Whether this works for the problem and is faster than a direct convolution. It depends on neither images
  /// nor channel blocks, so that the bits of an image depend on neither.
  static bool fits(const ConvolutionProblem& problem);
  /// The channel block that it needs for activations that are in `block`.
  static int block_for(std::int64_t channels, int block) {
    return block == 16 && channels % block == 0 ? block : 8;
  }

  /// problem: one that fits, in channel blocks from block_for().
  WinogradConvolution(const ConvolutionProblem& problem, int threads);

  std::int64_t scratch_floats() const { return scratch_floats_; }

  /// The pass writes its result and reads the rest; a weight gradient is added to `weight` if `accumulate`.
  /// `bias` (or none) only in a forward pass; `scratch`: scratch_floats(), 64-byte aligned.
  void run(float* x, float* weight, const float* bias, float* y, bool accumulate, float* scratch) const;

 private:
  /// The activations on one side of the convolution.
  struct Side {
    std::int64_t channels, height, width, block;
  };

  void convolve(const Side& from, const float* source, const Side& to, float* target, std::int64_t padding,
                const float* filters, const float* bias, float* work) const;
  void weight_gradient(const float* x, const float* dy, bool accumulate, float* dweight,
                       float* scratch) const;

  ConvolutionPass pass_;
  int threads_;
  std::int64_t padding_;
  Side x_, y_;
  std::int64_t tiles_down_, tiles_across_;  // of 4 x 4 positions of what is tiled: y, or dx
  std::int64_t tiles_, chunk_tiles_, chunks_;
  std::int64_t scratch_floats_ = 0;
};

}  // namespace lockstep::kernels
