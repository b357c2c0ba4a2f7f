// Convolutions of images and volumes. x: [N, C, H, W], weight: [O, C / groups, kh, kw], bias: [O], y: [N, O,
// H', W'], or all of them with a depth: [N, C, D, H, W], [O, C / groups, kd, kh, kw], [N, O, D', H', W']; H'
// = (H + 2 padding - dilation (kh - 1) - 1) / stride + 1. x and y in any channel block;
// Backend::preferred_channel_block is fast. Weights may be in Backend::preferred_weight_block.
#pragma once

#include "lockstep/ops/operation.h"

namespace lockstep::ops {

/// One number for each direction, or for all.
struct Directions {
  int depth = 0, height = 0, width = 0;  ///< depth: of volumes only

  /// The same in all directions.
  constexpr Directions(int all) : Directions(all, all, all) {}  // NOLINT: {.stride = 2}
  /// Of images. Volumes need a third number: -1 is none that they take.
  constexpr Directions(int of_height, int of_width) : Directions(-1, of_height, of_width) {}
  /// Of volumes.
  constexpr Directions(int of_depth, int of_height, int of_width)
      : depth(of_depth), height(of_height), width(of_width) {}
  /// These for volumes; for images, whose depth is 1, another number in the direction of depth.
  constexpr Directions with_depth(bool volumes, int otherwise) const {
    return volumes ? *this : Directions(otherwise, height, width);
  }
  bool operator==(const Directions&) const = default;
};
using HeightWidth = Directions;  ///< of images

/// How a window moves over an image or a volume.
struct ConvolutionGeometry {
  Directions stride = 1;
  Directions padding = 0;  ///< zeros on each side
  int groups = 1;
  Directions dilation = 1;  ///< distance between the elements of the kernel

  bool operator==(const ConvolutionGeometry&) const = default;
};

/// The extent of a convolution's result in one direction; UsageError naming `function` if an argument is out
/// of range or the kernel does not fit.
std::int64_t convolved_extent(const char* function, std::int64_t extent, std::int64_t kernel, int stride,
                              int padding, int dilation);

/// The three products of a convolution: y, dx and dweight.
enum class ConvolutionPass : std::uint8_t { forward, backward_input, backward_weight };

/// The sizes of a convolution. Images have depth 1.
struct ConvolutionSizes {
  std::int64_t images = 0, in_channels = 0, height = 0, width = 0;
  std::int64_t out_channels = 0, out_height = 0, out_width = 0;
  std::int64_t kernel_height = 0, kernel_width = 0;
  ConvolutionGeometry geometry;
  bool volumes = false;  ///< tensors have a depth
  std::int64_t depth = 1, out_depth = 1, kernel_depth = 1;

  double flops() const;
  std::string text() const;
  std::size_t hash() const;  ///< for caches of plans
  bool operator==(const ConvolutionSizes&) const = default;
};

/// y = the convolution of x with weight, as torch.nn.functional.conv2d and conv3d, + residual.
struct Convolution {
  static constexpr const char* name = "convolution";
  Tensor x, weight, bias;
  ConvolutionGeometry geometry;
  Tensor y;
  Tensor residual = {};  ///< y's shape, type and channel block; absent: nothing is added

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x).blocked(), in("weight", op.weight, weights).shared().blocked(),
         in("bias", op.bias, float32).shared().optional(), out("y", op.y).blocked(),
         in("residual", op.residual).blocked().optional());
  }
  ConvolutionSizes sizes() const;
};

/// dx of a convolution.
struct ConvolutionBackwardInput {
  static constexpr const char* name = "convolution_backward_input";
  Tensor dy, weight;
  ConvolutionGeometry geometry;
  Tensor dx;

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy).blocked(), in("weight", op.weight, weights).shared().blocked(),
         out("dx", op.dx).blocked());
  }
  ConvolutionSizes sizes() const;
};

/// dweight and dbias of a convolution.
struct ConvolutionBackwardWeight {
  static constexpr const char* name = "convolution_backward_weight";
  Tensor x, dy;
  ConvolutionGeometry geometry;
  Tensor dweight;
  bool accumulate = false;

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x).blocked(), in("dy", op.dy).blocked(),
         in_out("dweight", op.dweight, float32).per_part());
  }
  ConvolutionSizes sizes() const;
};

/// A weight and its copy in another type and channel block.
struct PackedWeight {
  Tensor value, packed;

  static void operands(auto& op, auto&& each) {
    each(in("value", op.value, floats).shared(), out("packed", op.packed, floats).shared().blocked());
  }
};

/// packed = value for each of many weights in one pass, rounded to packed's type; packed is in channel blocks
/// of C / groups.
struct PackWeights {
  static constexpr const char* name = "pack_weights";
  std::span<const PackedWeight> weights;

  static void operands(auto& op, auto&& each) { each(in_out("weights", op.weights, float32)); }
  void check() const;
};

/// y += bias[c] for every element of channel c; y: [N, C, H, W], [N, C, D, H, W] or [N, C].
struct AddChannels {
  static constexpr const char* name = "add_channels";
  Tensor bias, y;

  static void operands(auto& op, auto&& each) {
    each(in("bias", op.bias, float32).shared(), in_out("y", op.y).blocked());
  }
  void check() const;
};

/// dbias[c] (+)= the sum of dy, of such a shape, over all but the channels.
struct ChannelSums {
  static constexpr const char* name = "channel_sums";
  Tensor dy, dbias;
  bool accumulate = false;

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy).blocked(), in_out("dbias", op.dbias, float32).per_part());
  }
  void check() const;
};

}  // namespace lockstep::ops
