#include "data/picture.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "data/picture_files.h"
#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

/// Numbers of a TIFF structure, which EXIF is. Those beyond its end are 0.
class Tiff {
 public:
  explicit Tiff(std::span<const std::byte> bytes)
      : bytes_(bytes), little_(!bytes.empty() && bytes[0] == std::byte{'I'}) {}

  std::uint32_t number(std::size_t at, int width) const {
    std::uint32_t value = 0;
    if (at + static_cast<std::size_t>(width) > bytes_.size()) return 0;
    for (int i = 0; i < width; ++i)
      value = value << 8 | static_cast<std::uint32_t>(bytes_[at + (little_ ? width - 1 - i : i)]);
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  bool little_;
};

/// EXIF's tag of its first directory, by entries of 12 bytes: tag, type, count, value. 0: it has none.
int orientation_of_exif(std::span<const std::byte> exif) {
  constexpr std::uint32_t orientation = 0x0112, short_type = 3, long_type = 4;
  const Tiff tiff(exif);
  if (tiff.number(2, 2) != 42) return 0;
  const std::size_t directory = tiff.number(4, 4), entries = tiff.number(directory, 2);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + 12 * i;
    if (tiff.number(entry, 2) != orientation || tiff.number(entry + 4, 4) != 1) continue;
    const std::uint32_t type = tiff.number(entry + 2, 2);
    if (type == short_type || type == long_type)
      return static_cast<int>(tiff.number(entry + 8, type == short_type ? 2 : 4) & 0xFFFF);
  }
  return 0;
}

/// tiff:Orientation="6", or <tiff:Orientation>6; 0: neither.
int orientation_of_xmp(std::span<const std::byte> xmp) {
  constexpr std::string_view property = "tiff:Orientation";
  std::string_view text(reinterpret_cast<const char*>(xmp.data()), xmp.size());
  for (std::size_t at = text.find(property); at != text.npos; at = text.find(property)) {
    text.remove_prefix(at + property.size());
    for (const std::string_view before : {"=\"", ">"})
      if (text.starts_with(before) && text.size() > before.size()) {
        const char digit = text[before.size()];
        if (digit >= '0' && digit <= '9') return digit - '0';
      }
  }
  return 0;
}

int orientation_of(const StoredPicture& stored) {
  const int found =
      orientation_of_exif(stored.exif) ? orientation_of_exif(stored.exif) : orientation_of_xmp(stored.xmp);
  return found >= 1 && found <= 8 ? found : 1;
}

/// How a stored picture lies to the upright one: pixel (y, x) of the upright one, mirrored along an axis or
/// both, is pixel (y, x) of the stored one, or (x, y).
struct Turn {
  bool down = false, right = false;  // mirrored
  bool transposed = false;

  explicit Turn(int orientation)
      : down(orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8),
        right(orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7),
        transposed(orientation >= 5) {}

  bool any() const { return down || right || transposed; }

  template <class Number>
  Box<Number> swapped(const Box<Number>& box) const {
    if (!transposed) return box;
    return {.top = box.left, .left = box.top, .height = box.width, .width = box.height};
  }

  /// Of the upright picture, height x width.
  template <class Number>
  Box<Number> mirrored(const Box<Number>& box, std::int64_t height, std::int64_t width) const {
    return {.top = down ? static_cast<Number>(height) - box.top - box.height : box.top,
            .left = right ? static_cast<Number>(width) - box.left - box.width : box.left,
            .height = box.height,
            .width = box.width};
  }
};

/// Fills a picture of the upright size.
void turn_upright(const Turn& turn, const std::uint8_t* stored, Picture& upright) {
  const std::int64_t down = turn.transposed ? 1 : upright.width,  // pixels between neighbours in `stored`
      right = turn.transposed ? upright.height : 1;
  for (std::int64_t y = 0; y < upright.height; ++y) {
    const std::int64_t first =
        (turn.down ? upright.height - 1 - y : y) * down + (turn.right ? (upright.width - 1) * right : 0);
    const std::uint8_t* from = stored + 3 * first;
    const std::int64_t step = 3 * (turn.right ? -right : right);
    std::uint8_t* into = upright.row(y);
    for (std::int64_t x = 0; x < upright.width; ++x, from += step, into += 3) std::copy_n(from, 3, into);
  }
}

/// The pixels that a box of the full size touches in the reduced picture.
Box<std::int64_t> touched(const Box<std::int64_t>& box, std::int64_t reduction) {
  const std::int64_t top = box.top / reduction, left = box.left / reduction;
  return {.top = top,
          .left = left,
          .height = (box.top + box.height + reduction - 1) / reduction - top,
          .width = (box.left + box.width + reduction - 1) / reduction - left};
}

/// What a file is that is no picture we read, by its first bytes: "a GIF".
std::string_view other_kind(std::string_view start) {
  constexpr std::string_view container = "ftyp";  // at byte 4, before the kind of file
  constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kinds{
      {{"GIF8", "a GIF"},
       {std::string_view("II*\0", 4), "a TIFF"},
       {std::string_view("MM\0*", 4), "a TIFF"},
       {"BM", "a BMP"},
       {"<svg", "an SVG"},
       {"<?xml", "an SVG or other XML"},
       {"<!doctype html", "a page of HTML"},
       {"<html", "a page of HTML"},
       {"%PDF-", "a PDF"}}};
  if (start.starts_with("RIFF") && start.substr(std::min<std::size_t>(8, start.size())).starts_with("WEBP"))
    return "a WebP";
  if (start.size() >= 12 && start.substr(4, 4) == container) {
    const std::string_view brand = start.substr(8, 4);
    if (brand.starts_with("avi")) return "an AVIF";
    if (brand.starts_with("he") || brand == "mif1" || brand == "msf1") return "a HEIC";
    return "a film";
  }
  std::string lower(start.substr(std::min(start.find_first_not_of(" \t\r\n"), start.size())));
  std::ranges::transform(lower, lower.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  for (const auto& [bytes, kind] : kinds)
    if (start.starts_with(bytes) || lower.starts_with(bytes)) return kind;
  return "";
}

[[noreturn]] void refuse(std::span<const std::byte> file) {
  if (file.empty()) throw DataError("the file is empty");
  const std::size_t bytes = std::min<std::size_t>(file.size(), 64);
  const std::string_view kind = other_kind({reinterpret_cast<const char*>(file.data()), bytes});
  if (kind.empty()) throw DataError("the file is not a picture: neither JPEG nor PNG by its first bytes");
  throw DataError("the file is {}: pictures are read as JPEG or PNG", kind);
}

}  // namespace

void Picture::resize(std::int64_t new_height, std::int64_t new_width) {
  height = new_height;
  width = new_width;
  pixels.resize(static_cast<std::size_t>(3 * height * width));
}

int reduction_for(std::int64_t height, std::int64_t width, std::int64_t size) {
  int reduction = 8;
  while (reduction > 1 && std::min(height, width) < size * reduction) reduction /= 2;
  return reduction;
}

/// Readers of both formats, and what a picture needs that is turned.
class PictureDecoder::Files {
 public:
  PictureHeader open(std::span<const std::byte> file, const DecodeOptions& options) {
    PictureHeader header{.format = JpegFile::fits(file) ? PictureFormat::jpeg : PictureFormat::png};
    if (header.format == PictureFormat::png && !PngFile::fits(file)) refuse(file);
    const StoredPicture stored = header.format == PictureFormat::jpeg ? jpeg.open(file) : png.open(file);
    if (stored.height < 1 || stored.width < 1 || stored.width > options.max_pixels / stored.height)
      throw DataError("the picture is {} x {} pixels: at least 1 and at most {} are read", stored.height,
                      stored.width, options.max_pixels);
    if (options.exif) header.orientation = orientation_of(stored);
    const bool transposed = Turn(header.orientation).transposed;
    header.height = transposed ? stored.width : stored.height;
    header.width = transposed ? stored.height : stored.width;
    return header;
  }

  JpegFile jpeg;
  PngFile png;
  std::vector<std::uint8_t> turned;  // as stored
  PictureFormat last = PictureFormat::jpeg;
};

PictureDecoder::PictureDecoder() : files_(std::make_unique<Files>()) {}
PictureDecoder::~PictureDecoder() = default;
PictureDecoder::PictureDecoder(PictureDecoder&&) noexcept = default;
PictureDecoder& PictureDecoder::operator=(PictureDecoder&&) noexcept = default;

PictureHeader PictureDecoder::header(std::span<const std::byte> file, const DecodeOptions& options) {
  return files_->open(file, options);
}

Box<double> PictureDecoder::decode(std::span<const std::byte> file, const DecodeOptions& options,
                                   Picture& into) {
  const PictureHeader header = files_->open(file, options);
  files_->last = header.format;
  const bool jpeg = header.format == PictureFormat::jpeg;
  if (options.reduction != 1 && options.reduction != 2 && options.reduction != 4 && options.reduction != 8)
    throw UsageError("a picture was to be reduced by {}: by 1, 2, 4 or 8", options.reduction);
  const Box<std::int64_t> region =
      options.region.value_or(Box<std::int64_t>{.height = header.height, .width = header.width});
  if (region.top < 0 || region.left < 0 || region.height < 1 || region.width < 1 ||
      region.height > header.height - region.top || region.width > header.width - region.left)
    throw UsageError("{} x {} pixels from ({}, {}) on are not within a picture of {} x {}", region.height,
                     region.width, region.top, region.left, header.height, header.width);

  const Turn turn(header.orientation);
  const int reduction = jpeg ? options.reduction : 1;
  const Box<std::int64_t> exact = turn.swapped(turn.mirrored(region, header.height, header.width));
  const Box<std::int64_t> part = touched(exact, reduction), upright = turn.swapped(part);
  into.resize(upright.height, upright.width);
  if (turn.any()) files_->turned.resize(into.pixels.size());
  std::uint8_t* const pixels = turn.any() ? files_->turned.data() : into.pixels.data();
  if (jpeg)
    files_->jpeg.read(part, reduction, pixels);
  else
    files_->png.read(part, pixels);
  if (turn.any()) turn_upright(turn, pixels, into);

  const auto within = [&](std::int64_t edge, std::int64_t pixel) {
    return static_cast<double>(edge - pixel * reduction) / reduction;
  };
  const Box<double> place{.top = within(exact.top, part.top),
                          .left = within(exact.left, part.left),
                          .height = within(exact.height, 0),
                          .width = within(exact.width, 0)};
  return turn.mirrored(turn.swapped(place), into.height, into.width);
}

const std::string& PictureDecoder::warning() const {
  return files_->last == PictureFormat::jpeg ? files_->jpeg.warning() : files_->png.warning();
}

}  // namespace lockstep::data
