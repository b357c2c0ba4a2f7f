// Convolutions. x: [N, C, H, W], weight: [O, C / groups, kh, kw], bias: [O], y: [N, O, H', W'];
// H' = (H + 2 padding - kh) / stride + 1. x and y in any channel block; Backend::preferred_channel_block is
// fast.
#pragma once

#include "lockstep/ops/operation.h"

namespace lockstep::ops {

struct ConvolutionGeometry {
  int stride = 1;
  int padding = 0;
  int groups = 1;
};

struct ConvolutionSizes {
  std::int64_t images = 0, in_channels = 0, height = 0, width = 0;
  std::int64_t out_channels = 0, out_height = 0, out_width = 0;
  std::int64_t kernel_height = 0, kernel_width = 0;
  ConvolutionGeometry geometry;

  double flops() const;
  std::string text() const;
};

struct Convolution {
  static constexpr const char* name = "convolution";
  Tensor x, weight, bias;
  ConvolutionGeometry geometry;
  Tensor y;

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x).blocked(), in("weight", op.weight, weights), in("bias", op.bias, float32).optional(),
         out("y", op.y).blocked());
  }
  ConvolutionSizes sizes() const;
};

struct ConvolutionBackwardInput {
  static constexpr const char* name = "convolution_backward_input";
  Tensor dy, weight;
  ConvolutionGeometry geometry;
  Tensor dx;

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy).blocked(), in("weight", op.weight, weights), out("dx", op.dx).blocked());
  }
  ConvolutionSizes sizes() const;
};

struct ConvolutionBackwardWeight {
  static constexpr const char* name = "convolution_backward_weight";
  Tensor x, dy;
  ConvolutionGeometry geometry;
  Tensor dweight;
  bool accumulate = false;

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x).blocked(), in("dy", op.dy).blocked(), in_out("dweight", op.dweight, float32));
  }
  ConvolutionSizes sizes() const;
};

/// dbias[c] (+)= the sum of dy [N, C, H, W] or [N, C] over all but the channels.
struct ChannelSums {
  static constexpr const char* name = "channel_sums";
  Tensor dy, dbias;
  bool accumulate = false;

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy).blocked(), in_out("dbias", op.dbias, float32));
  }
  void check() const;
};

}  // namespace lockstep::ops
