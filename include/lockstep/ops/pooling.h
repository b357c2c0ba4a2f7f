// Pooling, nearest upsampling and bilinear resizing of images [N, C, H, W] in any channel block.
#pragma once

#include "lockstep/ops/math.h"
#include "lockstep/ops/operation.h"

namespace lockstep::ops {

/// How a window moves over an image.
struct PoolGeometry {
  int kernel = 2;
  int stride = 2;
  int padding = 0;
};

/// The windows of a pooling.
struct Windows {
  std::int64_t height, width;          ///< of the large side
  std::int64_t out_height, out_width;  ///< of the small side
  std::int64_t kernel, stride, padding;

  /// body(output pixel, first row, end row, first column, end column) inside the image.
  template <class Body>
  void for_each(const Body& body) const {
    for (std::int64_t oh = 0; oh < out_height; ++oh) {
      const std::int64_t top = oh * stride - padding;
      for (std::int64_t ow = 0; ow < out_width; ++ow) {
        const std::int64_t left = ow * stride - padding;
        body(oh * out_width + ow, top > 0 ? top : 0, top + kernel < height ? top + kernel : height,
             left > 0 ? left : 0, left + kernel < width ? left + kernel : width);
      }
    }
  }
};

/// winners: int32 of y's shape and layout: the pixel (h * W + w) of x of each maximum (the first on a tie).
struct MaxPool {
  static constexpr const char* name = "max_pool";
  Tensor x;
  PoolGeometry geometry;
  Tensor y, winners;

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x).blocked(), out("y", op.y).blocked(), out("winners", op.winners, int32).blocked());
  }
  Windows windows() const;  ///< UsageError where shapes do not fit
  void check() const;
};

/// dx of a MaxPool.
struct MaxPoolBackward {
  static constexpr const char* name = "max_pool_backward";
  Tensor dy, winners;
  PoolGeometry geometry;
  Tensor dx;

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy).blocked(), in("winners", op.winners, int32).blocked(), out("dx", op.dx).blocked());
  }
  Windows windows() const;  ///< UsageError if sizes do not fit
  void check() const;
};

/// Padding counts as zeros in the mean (PyTorch's count_include_pad = True).
struct AveragePool {
  static constexpr const char* name = "average_pool";
  Tensor x;
  PoolGeometry geometry;
  Tensor y;

  static void operands(auto& op, auto&& each) { each(in("x", op.x).blocked(), out("y", op.y).blocked()); }
  Windows windows() const;  ///< UsageError if sizes do not fit
  void check() const { (void)windows(); }
};

/// dx of an AveragePool.
struct AveragePoolBackward {
  static constexpr const char* name = "average_pool_backward";
  Tensor dy;
  PoolGeometry geometry;
  Tensor dx;

  static void operands(auto& op, auto&& each) { each(in("dy", op.dy).blocked(), out("dx", op.dx).blocked()); }
  Windows windows() const;  ///< UsageError if sizes do not fit
  void check() const { (void)windows(); }
};

/// y: plain [N, C] or [N, C, 1, 1].
struct GlobalAveragePool {
  static constexpr const char* name = "global_average_pool";
  Tensor x, y;

  static void operands(auto& op, auto&& each) { each(in("x", op.x).blocked(), out("y", op.y)); }
  void check() const;
};

/// dx of a GlobalAveragePool.
struct GlobalAveragePoolBackward {
  static constexpr const char* name = "global_average_pool_backward";
  Tensor dy, dx;

  static void operands(auto& op, auto&& each) { each(in("dy", op.dy), out("dx", op.dx).blocked()); }
  void check() const;
};

/// y: [N, C, H * scale, W * scale], each pixel the nearest of x.
struct UpsampleNearest {
  static constexpr const char* name = "upsample_nearest";
  Tensor x;
  int scale = 2;
  Tensor y;

  static void operands(auto& op, auto&& each) { each(in("x", op.x).blocked(), out("y", op.y).blocked()); }
  void check() const;
};

/// dx of an UpsampleNearest.
struct UpsampleNearestBackward {
  static constexpr const char* name = "upsample_nearest_backward";
  Tensor dy;
  int scale = 2;
  Tensor dx;

  static void operands(auto& op, auto&& each) { each(in("dy", op.dy).blocked(), out("dx", op.dx).blocked()); }
  void check() const;
};

// --- bilinear resizing: pixels have half-pixel centres; beyond the outermost centres the image is constant

/// The two pixels of the old extent next to a pixel of the new one, and the share of `second`.
struct Neighbours {
  std::int64_t first = 0, second = 0;
  float share = 0;

  /// The weight of an old pixel.
  LOCKSTEP_ON_ANY_DEVICE float of(std::int64_t position) const {
    return (position == first ? 1 - share : 0.0f) + (position == second ? share : 0.0f);
  }
};

/// One direction of a resize.
struct Resizing {
  std::int64_t from = 1, to = 1;

  LOCKSTEP_ON_ANY_DEVICE Neighbours at(std::int64_t position) const {
    const float scale = static_cast<float>(from) / static_cast<float>(to);
    const float centre = multiply_add(static_cast<float>(position) + 0.5f, scale, -0.5f);
    const float inside = centre > 0 ? centre : 0;
    const auto below = static_cast<std::int64_t>(inside);
    const std::int64_t first = below < from ? below : from - 1;
    return {first, first + 1 < from ? first + 1 : first, inside - static_cast<float>(first)};
  }

  /// New pixels [begin, end): at least those that have the old pixel as a neighbour. The range is half a
  /// pixel wider on each side, so that rounding omits none.
  struct Range {
    std::int64_t begin, end;
  };
  LOCKSTEP_ON_ANY_DEVICE Range around(std::int64_t position) const {
    const float scale = static_cast<float>(to) / static_cast<float>(from);
    const auto first = static_cast<std::int64_t>((static_cast<float>(position) - 0.5f) * scale);
    const auto last = static_cast<std::int64_t>((static_cast<float>(position) + 1.5f) * scale);
    return {first > 0 ? first : 0, last < to ? last + 1 : to};
  }
};

/// The sizes of a resize.
struct ResizeSizes {
  Resizing height, width;
};

/// Images of another size, by bilinear interpolation.
struct ResizeBilinear {
  static constexpr const char* name = "resize_bilinear";
  Tensor x, y;

  static void operands(auto& op, auto&& each) { each(in("x", op.x).blocked(), out("y", op.y).blocked()); }
  ResizeSizes sizes()
      const;  ///< UsageError unless y has x's images, channels and layout, and both have pixels
};

/// dx of a ResizeBilinear.
struct ResizeBilinearBackward {
  static constexpr const char* name = "resize_bilinear_backward";
  Tensor dy, dx;

  static void operands(auto& op, auto&& each) { each(in("dy", op.dy).blocked(), out("dx", op.dx).blocked()); }
  ResizeSizes sizes() const;
};

}  // namespace lockstep::ops
