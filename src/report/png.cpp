#include "report/png.h"

#include <png.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep::report {
namespace {

constexpr std::int64_t gap = 1;  // pixels between images

std::int64_t side_of(std::int64_t images, std::int64_t pixels) { return images * (pixels + gap) + gap; }

std::uint8_t byte_of(float value) {
  const double byte = std::nearbyint((static_cast<double>(value) + 1) * 127.5);
  return byte > 0 ? static_cast<std::uint8_t>(std::min(byte, 255.0)) : 0;  // NaN is not above 0
}

}  // namespace

std::string png_of(const Picture& picture) {
  const bool fits = picture.width >= 1 && picture.width <= max_picture_side && picture.height >= 1 &&
                    picture.height <= max_picture_side && (picture.channels == 1 || picture.channels == 3) &&
                    std::ssize(picture.pixels) == picture.width * picture.height * picture.channels;
  if (!fits)
    throw UsageError("cannot write a PNG file of {} x {} pixels, {} channels and {} bytes", picture.width,
                     picture.height, picture.channels, picture.pixels.size());
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(picture.width);
  image.height = static_cast<png_uint_32>(picture.height);
  image.format = picture.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  const auto write = [&](void* into, png_alloc_size_t& bytes) {
    if (png_image_write_to_memory(&image, into, &bytes, 0, picture.pixels.data(), 0, nullptr) == 0)
      throw FailureError("libpng: {}", image.message);
  };
  std::string file;
  file.resize(PNG_IMAGE_PNG_SIZE_MAX(image));
  png_alloc_size_t bytes = file.size();
  write(file.data(), bytes);
  file.resize(bytes);
  return file;
}

std::int64_t columns_of_grid(std::int64_t count) {
  auto columns = static_cast<std::int64_t>(std::sqrt(static_cast<double>(count)));
  while (columns * columns < count) ++columns;
  return columns;
}

void check_grid(std::int64_t count, const Shape& image) {
  if (count < 1) throw UsageError("a grid of {} images: must have at least 1", count);
  if (image.rank() != 3 || (image[0] != 1 && image[0] != 3))
    throw UsageError("samples have shape {}, but pictures need [1, height, width] or [3, height, width]",
                     to_string(image));
  if (count > max_picture_side * max_picture_side)
    throw UsageError("a grid of {} images is too large for a picture", count);
  const std::int64_t columns = columns_of_grid(count), rows = (count + columns - 1) / columns;
  if (image[1] > max_picture_side || image[2] > max_picture_side ||
      side_of(rows, image[1]) > max_picture_side || side_of(columns, image[2]) > max_picture_side)
    throw UsageError("a grid of {} images {} exceeds {} pixels per side", count, to_string(image),
                     max_picture_side);
}

Picture grid_of(std::span<const float> images, std::int64_t count, const Shape& image) {
  check_grid(count, image);
  if (std::ssize(images) != count * image.numel())
    throw UsageError("{} values do not fit {} images {}", images.size(), count, to_string(image));
  const std::int64_t channels = image[0], height = image[1], width = image[2];
  const std::int64_t columns = columns_of_grid(count), rows = (count + columns - 1) / columns;
  Picture picture{.width = side_of(columns, width),
                  .height = side_of(rows, height),
                  .channels = static_cast<int>(channels)};
  picture.pixels.resize(static_cast<std::size_t>(picture.width * picture.height * channels));
  for (std::int64_t i = 0; i < count; ++i) {
    const float* const values = images.data() + i * image.numel();
    const std::int64_t first_y = side_of(i / columns, height), first_x = side_of(i % columns, width);
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t y = 0; y < height; ++y)
        for (std::int64_t x = 0; x < width; ++x) {
          const std::int64_t pixel = (first_y + y) * picture.width + first_x + x;
          picture.pixels[static_cast<std::size_t>(pixel * channels + c)] =
              byte_of(values[(c * height + y) * width + x]);
        }
  }
  return picture;
}

}  // namespace lockstep::report
