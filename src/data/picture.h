// Pictures of files: JPEG and PNG, decoded to the bytes that Pillow makes of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

/// 8-bit RGB. Pixel (y, x) is the three bytes from pixels[3 * (y * width + x)] on.
struct Picture {
  std::int64_t height = 0, width = 0;
  std::vector<std::uint8_t> pixels{};

  /// Takes another size; what the pixels are is then open.
  void resize(std::int64_t new_height, std::int64_t new_width);
  std::uint8_t* row(std::int64_t y) { return pixels.data() + 3 * y * width; }              ///< from x = 0 on
  const std::uint8_t* row(std::int64_t y) const { return pixels.data() + 3 * y * width; }  ///< the same
};

/// A rectangle of a picture. A Box<double> may begin and end within pixels.
template <class Number>
struct Box {
  Number top = 0, left = 0, height = 0, width = 0;
  bool operator==(const Box&) const = default;
};

enum class PictureFormat { jpeg, png };

/// What a file says of its picture before any pixel.
struct PictureHeader {
  PictureFormat format = PictureFormat::jpeg;
  std::int64_t height = 0, width = 0;  ///< of the upright picture, or as stored where `exif` is false
  int orientation = 1;                 ///< EXIF's, 1 to 8; 1: as stored
};

/// How a file becomes a picture.
struct DecodeOptions {
  bool exif = true;  ///< turns the picture upright, as its EXIF or XMP says
  std::int64_t max_pixels =
      178'956'970;  ///< more are refused, before there is memory for them: Pillow's limit
  std::optional<Box<std::int64_t>> region{};  ///< of the upright picture in full size; none: all of it
  int reduction = 1;  ///< 1, 2, 4, 8: JPEG in this fraction of its size, by a smaller IDCT; PNG stays whole
};

/// The largest reduction that leaves a part of height x width pixels no smaller than `size` along an axis.
int reduction_for(std::int64_t height, std::int64_t width, std::int64_t size);

/// Decodes files one after another, and keeps its buffers: one for each thread.
///
/// Pixels are those of Pillow's ImageOps.exif_transpose(image).convert("RGB"): CMYK is taken as Adobe's
/// inverted, palettes become their colours, alpha and transparent colours are dropped and not blended. They
/// differ in one thing: 16 bits keep the upper 8 in grey, too, where Pillow makes all from 255 on white.
///
/// Every error is a DataError of one line, which does not name the file. Truncated files are refused, but for
/// what comes after the region of a sequential JPEG.
class PictureDecoder {
 public:
  PictureDecoder();
  ~PictureDecoder();
  PictureDecoder(PictureDecoder&&) noexcept;
  PictureDecoder& operator=(PictureDecoder&&) noexcept;

  /// The size, without decoding. Reads `exif` and `max_pixels` of the options.
  PictureHeader header(std::span<const std::byte> file, const DecodeOptions& options = {});
  /// Returns where the region is in `into`: all of it, unless a reduction made its edges fall into pixels. A
  /// region's pixels are those of the whole picture. UsageError if it is not within the picture, or on
  /// another reduction.
  Box<double> decode(std::span<const std::byte> file, const DecodeOptions& options, Picture& into);
  /// What the library said of damage in the last picture that it decoded all the same, as Pillow does; empty:
  /// nothing.
  const std::string& warning() const;

 private:
  class Files;
  std::unique_ptr<Files> files_;
};

}  // namespace lockstep::data
