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

/// The maximum width and height of a picture in pixels.
inline constexpr std::int64_t max_picture_side = 16384;

/// The bytes of a PNG file. They depend only on the picture and the version of libpng: they contain no time.
/// UsageError unless the picture has 1 or 3 channels, sides of 1 to max_picture_side pixels, and
/// width * height * channels bytes.
std::string png_of(const Picture& picture);

/// The number of images in a row of a grid of `count`: its square root, rounded up.
std::int64_t columns_of_grid(std::int64_t count);
/// UsageError if a grid of `count` images [C, H, W] cannot be a picture: C is not 1 or 3, count is 0, or a
/// side exceeds max_picture_side.
void check_grid(std::int64_t count, const Shape& image);
/// A grid of images [N, C, H, W], row by row from the upper left, each with a black border of one pixel.
/// Values in [-1, 1] become 0 to 255 (rounded, clamped; NaN becomes 0). Errors of check_grid().
Picture grid_of(std::span<const float> images, std::int64_t count, const Shape& image);

}  // namespace lockstep::report
