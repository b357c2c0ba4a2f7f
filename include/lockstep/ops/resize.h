// Bilinear resizing of images [N, C, H, W] in any channel block. Places have half-pixel centres: what is
// outside the outermost ones is theirs.
#pragma once

#include "lockstep/ops/math.h"
#include "lockstep/ops/operation.h"

namespace lockstep::ops {

/// The two places of the old extent that a place of the new one is between, and the share of `second`.
struct Neighbours {
  std::int64_t first = 0, second = 0;
  float share = 0;

  /// The weight of an old place.
  LOCKSTEP_ON_ANY_DEVICE float of(std::int64_t place) const {
    return (place == first ? 1 - share : 0.0f) + (place == second ? share : 0.0f);
  }
};

/// One direction of a resize.
struct Resizing {
  std::int64_t from = 1, to = 1;

  LOCKSTEP_ON_ANY_DEVICE Neighbours at(std::int64_t place) const {
    const float scale = static_cast<float>(from) / static_cast<float>(to);
    const float centre = multiply_add(static_cast<float>(place) + 0.5f, scale, -0.5f);
    const float inside = centre > 0 ? centre : 0;
    const auto below = static_cast<std::int64_t>(inside);
    const std::int64_t first = below < from ? below : from - 1;
    return {first, first + 1 < from ? first + 1 : first, inside - static_cast<float>(first)};
  }

  /// New places [begin, end): at least those that an old place is a neighbour of. They are half a place
  /// more on each side, so that no rounding leaves one out.
  struct Range {
    std::int64_t begin, end;
  };
  LOCKSTEP_ON_ANY_DEVICE Range around(std::int64_t place) const {
    const float scale = static_cast<float>(to) / static_cast<float>(from);
    const auto first = static_cast<std::int64_t>((static_cast<float>(place) - 0.5f) * scale);
    const auto last = static_cast<std::int64_t>((static_cast<float>(place) + 1.5f) * scale);
    return {first > 0 ? first : 0, last < to ? last + 1 : to};
  }
};

struct ResizeSizes {
  Resizing height, width;
};

struct ResizeBilinear {
  static constexpr const char* name = "resize_bilinear";
  Tensor x, y;

  static void operands(auto& op, auto&& each) { each(in("x", op.x).blocked(), out("y", op.y).blocked()); }
  ResizeSizes sizes()
      const;  ///< UsageError unless y has x's images, channels and layout, and both have places
};

struct ResizeBilinearBackward {
  static constexpr const char* name = "resize_bilinear_backward";
  Tensor dy, dx;

  static void operands(auto& op, auto&& each) { each(in("dy", op.dy).blocked(), out("dx", op.dx).blocked()); }
  ResizeSizes sizes() const;
};

}  // namespace lockstep::ops
