// PNG pictures: a grid of images, as 8-bit grey or RGB.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/shape.h"

namespace lockstep::report {

/// Rows of pixels from the top, `channels` bytes a pixel.
struct Picture {
  std::int64_t width = 0, height = 0;
  int channels = 1;  ///< 1: grey; 3: red, green, blue
  std::vector<std::uint8_t> pixels{};
};

/// The most pixels that a side of a picture may have.
inline constexpr std::int64_t max_picture_side = 16384;

/// A file's bytes, the same for the same picture (and library libpng): they hold no time. UsageError unless
/// the picture has 1 or 3 channels, 1 to max_picture_side pixels a side and as many bytes as that takes.
std::string png_of(const Picture& picture);

/// How many images a row of a grid of `count` has: the root, rounded up.
std::int64_t columns_of_grid(std::int64_t count);
/// UsageError if a grid of `count` images [C, H, W] cannot be a picture: C is not 1 or 3, there are none, or
/// a side is too long.
void check_grid(std::int64_t count, const Shape& image);
/// Images [N, C, H, W] of values in [-1, 1], which become 0 to 255 (rounded, clamped; NaN is 0), by rows from
/// the upper left, with a black line of one pixel around each. UsageError as check_grid().
Picture grid_of(std::span<const float> images, std::int64_t count, const Shape& image);

}  // namespace lockstep::report
