// What cuDNN's descriptors of a convolution hold, and the convolution that they describe.
#pragma once

#include <cstddef>

#include "emulated_gpu/cudnn_status.h"

namespace lockstep::emulated_gpu {

/// [n, c, h, w] of images, or of weights: n outputs of c inputs each. Volumes have a depth d.
struct Images {
  bool described = false;
  cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int n = 0, c = 0, h = 0, w = 0, d = 1;

  std::size_t count() const {
    return static_cast<std::size_t>(n) * static_cast<std::size_t>(c) * static_cast<std::size_t>(h) *
           static_cast<std::size_t>(w) * static_cast<std::size_t>(d);
  }
  std::size_t bytes() const { return count() * bytes_of(*element_of(type)); }
};

struct ConvolutionGeometry {
  bool described = false;
  int padding_h = 0, padding_w = 0, stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
  int padding_d = 0, stride_d = 1, dilation_d = 1;
  int groups = 1;
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

enum class Pass { forward, backward_data, backward_filter };

/// One of x, w and y is what the pass makes: alpha times the result, plus beta times what was there.
struct ConvolutionCall {
  Pass pass = Pass::forward;
  Images x, w, y;
  ConvolutionGeometry geometry;
  const void *x_data = nullptr, *w_data = nullptr, *y_data = nullptr;
  void* made = nullptr;
  float alpha = 1, beta = 0;
  bool from_last = false;  ///< products are added in the reverse order of weights: other bits
};

/// Whether the three fit together.
cudnnStatus_t checked(const Images& x, const Images& w, const ConvolutionGeometry& geometry, const Images& y);

/// The convolution, now.
void compute(const ConvolutionCall& call);

}  // namespace lockstep::emulated_gpu
