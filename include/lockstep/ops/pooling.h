// Pooling, nearest upsampling and bilinear resizing of images [N, C, H, W] in any channel block; all but the
// last of volumes [N, C, D, H, W], too.
#pragma once

#include "lockstep/ops/convolution.h"
#include "lockstep/ops/math.h"
#include "lockstep/ops/operation.h"

namespace lockstep::ops {

/// How a window moves over an image or a volume.
struct PoolGeometry {
  Directions kernel = 2;
  Directions stride = 2;
  Directions padding = 0;
};

/// Positions [begin, end) along one direction.
struct PositionRange {
  std::int64_t begin, end;
};

/// The windows of a pooling along one direction.
struct WindowsAlong {
  std::int64_t extent = 1, outputs = 1;  ///< of the large and of the small side
  std::int64_t kernel = 1, stride = 1, padding = 0;
  bool adaptive = false;  ///< windows [floor(i extent / outputs), ceil((i + 1) extent / outputs))

  /// The positions of window i that are inside.
  LOCKSTEP_ON_ANY_DEVICE PositionRange window(std::int64_t i) const {
    if (adaptive) return {i * extent / outputs, ((i + 1) * extent + outputs - 1) / outputs};
    const std::int64_t begin = i * stride - padding, end = begin + kernel;
    return {begin > 0 ? begin : 0, end < extent ? end : extent};
  }
  /// The windows that contain a position. Extents have 32 bits, in which divisions are faster.
  LOCKSTEP_ON_ANY_DEVICE PositionRange over(std::int64_t position) const {
    if (adaptive) return {position * outputs / extent, ((position + 1) * outputs + extent - 1) / extent};
    const auto quotient = [](std::int64_t a, std::int64_t by) -> std::int64_t {
      return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(by);
    };
    const std::int64_t padded = position + padding, end = quotient(padded, stride) + 1;
    return {padded < kernel ? 0 : quotient(padded - kernel, stride) + 1, end < outputs ? end : outputs};
  }
};

/// The positions of one window.
struct Window {
  PositionRange depth, rows, columns;
};

/// The windows of a pooling. Images have depth 1.
struct Windows {
  WindowsAlong depth, height, width;

  /// What a position counts in the mean over a window.
  LOCKSTEP_ON_ANY_DEVICE float share(const Window& of) const {
    const auto [d, h, w] = of;
    const std::int64_t count = height.adaptive ? (d.end - d.begin) * (h.end - h.begin) * (w.end - w.begin)
                                               : depth.kernel * height.kernel * width.kernel;
    return 1.0f / static_cast<float>(count);
  }

  /// body(number of the output, its window).
  template <class Body>
  void for_each(const Body& body) const {
    std::int64_t output = 0;
    for (std::int64_t od = 0; od < depth.outputs; ++od) {
      for (std::int64_t oh = 0; oh < height.outputs; ++oh) {
        for (std::int64_t ow = 0; ow < width.outputs; ++ow)
          body(output++, Window{depth.window(od), height.window(oh), width.window(ow)});
      }
    }
  }
};

/// winners: int32 of y's shape and layout: the position (h * W + w, or (d * H + h) * W + w) in x of each
/// maximum (the first on a tie).
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

/// Padding counts as zeros in the mean (PyTorch's count_include_pad = True). adaptive: windows of all of x,
/// by the extents of y; the geometry is not used.
struct AveragePool {
  static constexpr const char* name = "average_pool";
  Tensor x;
  PoolGeometry geometry;
  Tensor y;
  bool adaptive = false;

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
  bool adaptive = false;

  static void operands(auto& op, auto&& each) { each(in("dy", op.dy).blocked(), out("dx", op.dx).blocked()); }
  Windows windows() const;  ///< UsageError if sizes do not fit
  void check() const { (void)windows(); }
};

/// y: plain [N, C], [N, C, 1, 1] or [N, C, 1, 1, 1].
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

/// y: [N, C, H * scale, W * scale], each pixel the nearest of x; of volumes the depth, too.
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
    if (from == to) return {position, position + 1 < from ? position + 1 : position, 0};
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
    if (from == to) return {position > 0 ? position - 1 : 0, position + 2 < to ? position + 2 : to};
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
