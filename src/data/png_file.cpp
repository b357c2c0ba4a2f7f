#include "data/picture_files.h"

#include <png.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

constexpr std::size_t signature_bytes = 8, frame_bytes = 12;  // of a chunk: length, name, checksum
constexpr std::string_view xmp_keyword("XML:com.adobe.xmp\0", 18);

struct Chunk {
  std::string_view name;
  std::span<const std::byte> data;
};

std::int64_t number_at(std::span<const std::byte> bytes, std::size_t at) {
  return png_get_uint_32(reinterpret_cast<png_const_bytep>(bytes.data() + at));
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The chunk that the bytes begin with.
Chunk first_chunk(std::span<const std::byte> bytes) {
  if (bytes.size() >= frame_bytes) {
    const auto length = static_cast<std::size_t>(number_at(bytes, 0));
    if (bytes.size() - frame_bytes >= length) return {text_of(bytes.subspan(4, 4)), bytes.subspan(8, length)};
  }
  throw DataError("the PNG is truncated: it has no IEND");
}

}  // namespace

/// What libpng makes for a file.
class PngFile::Codec {
 public:
  Codec() = default;
  ~Codec() { png_destroy_read_struct(&png, &info, nullptr); }
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  png_structp png = nullptr;
  png_infop info = nullptr;
};

/// Calls of libpng, which leaves them by longjmp: they keep no object that has a destructor.
template <class Calls>
void PngFile::run(const Calls& calls) {
  if (setjmp(give_up_) != 0) throw DataError("libpng cannot read it: {}", error_);
  calls();
}

bool PngFile::fits(std::span<const std::byte> file) {
  return file.size() >= signature_bytes &&
         png_sig_cmp(reinterpret_cast<png_const_bytep>(file.data()), 0, signature_bytes) == 0;
}

/// Walks through the chunks, since EXIF may come after the pixels.
StoredPicture PngFile::open(std::span<const std::byte> file) {
  rest_ = file;
  warning_.clear();
  stored_ = {};
  file = file.subspan(signature_bytes);
  Chunk chunk = first_chunk(file);
  if (chunk.name != "IHDR" || chunk.data.size() != 13)
    throw DataError("the PNG does not begin with its size");
  stored_.width = number_at(chunk.data, 0);
  stored_.height = number_at(chunk.data, 4);
  while (chunk.name != "IEND") {
    file = file.subspan(frame_bytes + chunk.data.size());
    chunk = first_chunk(file);
    if (chunk.name == "eXIf") stored_.exif = chunk.data;
    if (chunk.name == "iTXt" && text_of(chunk.data).starts_with(xmp_keyword)) stored_.xmp = chunk.data;
  }
  return stored_;
}

void PngFile::read(const Box<std::int64_t>& part, std::uint8_t* pixels) {
  Codec codec;
  run([&] { read_rows(codec, part, pixels); });
}

void PngFile::read_rows(Codec& codec, const Box<std::int64_t>& part, std::uint8_t* pixels) {
  codec.png = png_create_read_struct(
      PNG_LIBPNG_VER_STRING, this,
      [](png_structp png, png_const_charp text) {
        auto& file = *static_cast<PngFile*>(png_get_error_ptr(png));
        file.error_ = text;
        std::longjmp(file.give_up_, 1);
      },
      [](png_structp png, png_const_charp text) {
        auto& file = *static_cast<PngFile*>(png_get_error_ptr(png));
        if (file.warning_.empty()) file.warning_ = text;
      });
  png_structp const png = codec.png;
  codec.info = png ? png_create_info_struct(png) : nullptr;
  if (!codec.info) throw std::bad_alloc();
  png_set_read_fn(png, this, [](png_structp reader, png_bytep into, std::size_t bytes) {
    auto& rest = static_cast<PngFile*>(png_get_io_ptr(reader))->rest_;
    if (bytes > rest.size()) png_error(reader, "its bytes end within the picture");
    std::memcpy(into, rest.data(), bytes);
    rest = rest.subspan(bytes);
  });
  png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);             // PictureDecoder has the limit
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);  // none but those of pixels
  png_read_info(png, codec.info);
  png_set_strip_16(png);
  png_set_expand_gray_1_2_4_to_8(png);
  png_set_palette_to_rgb(png);
  png_set_gray_to_rgb(png);
  png_set_strip_alpha(png);
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, codec.info);

  const std::int64_t stride = 3 * stored_.width;
  const std::int64_t end = part.top + part.height;
  if (passes == 1) {
    scratch_.resize(static_cast<std::size_t>(stride));
    for (std::int64_t y = 0; y < end; ++y) {
      png_read_row(png, scratch_.data(), nullptr);
      if (y < part.top) continue;
      std::copy_n(scratch_.data() + 3 * part.left, 3 * part.width, pixels);
      pixels += 3 * part.width;
    }
    return;
  }
  scratch_.resize(static_cast<std::size_t>(stride * stored_.height));
  for (int pass = 0; pass < passes; ++pass)
    for (std::int64_t y = 0; y < stored_.height; ++y)
      png_read_row(png, scratch_.data() + y * stride, nullptr);
  for (std::int64_t y = part.top; y < end; ++y, pixels += 3 * part.width)
    std::copy_n(scratch_.data() + y * stride + 3 * part.left, 3 * part.width, pixels);
}

}  // namespace lockstep::data
