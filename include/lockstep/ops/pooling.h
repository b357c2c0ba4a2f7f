// Pooling and resampling of images [N, C, H, W] in any channel block.
#pragma once

#include "lockstep/ops/operation.h"

namespace lockstep::ops {

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

  /// body(output place, first row, end row, first column, end column) inside the image.
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

/// winners: int32 of y's shape and layout: flat place (h * W + w) in x of each maximum (the first on a tie).
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

struct MaxPoolBackward {
  static constexpr const char* name = "max_pool_backward";
  Tensor dy, winners;
  PoolGeometry geometry;
  Tensor dx;

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy).blocked(), in("winners", op.winners, int32).blocked(), out("dx", op.dx).blocked());
  }
  Windows windows() const;
  void check() const;
};

/// Padded places count as zeros in the mean (PyTorch's count_include_pad = True).
struct AveragePool {
  static constexpr const char* name = "average_pool";
  Tensor x;
  PoolGeometry geometry;
  Tensor y;

  static void operands(auto& op, auto&& each) { each(in("x", op.x).blocked(), out("y", op.y).blocked()); }
  Windows windows() const;
  void check() const { (void)windows(); }
};

struct AveragePoolBackward {
  static constexpr const char* name = "average_pool_backward";
  Tensor dy;
  PoolGeometry geometry;
  Tensor dx;

  static void operands(auto& op, auto&& each) { each(in("dy", op.dy).blocked(), out("dx", op.dx).blocked()); }
  Windows windows() const;
  void check() const { (void)windows(); }
};

/// y: plain [N, C] or [N, C, 1, 1].
struct GlobalAveragePool {
  static constexpr const char* name = "global_average_pool";
  Tensor x, y;

  static void operands(auto& op, auto&& each) { each(in("x", op.x).blocked(), out("y", op.y)); }
  void check() const;
};

struct GlobalAveragePoolBackward {
  static constexpr const char* name = "global_average_pool_backward";
  Tensor dy, dx;

  static void operands(auto& op, auto&& each) { each(in("dy", op.dy), out("dx", op.dx).blocked()); }
  void check() const;
};

/// y: [N, C, H * scale, W * scale], each place the nearest of x.
struct UpsampleNearest {
  static constexpr const char* name = "upsample_nearest";
  Tensor x;
  int scale = 2;
  Tensor y;

  static void operands(auto& op, auto&& each) { each(in("x", op.x).blocked(), out("y", op.y).blocked()); }
  void check() const;
};

struct UpsampleNearestBackward {
  static constexpr const char* name = "upsample_nearest_backward";
  Tensor dy;
  int scale = 2;
  Tensor dx;

  static void operands(auto& op, auto&& each) { each(in("dy", op.dy).blocked(), out("dx", op.dx).blocked()); }
  void check() const;
};

}  // namespace lockstep::ops
