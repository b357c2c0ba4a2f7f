#include "data/picture_files.h"

#include <jerror.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

constexpr int rows_at_once = 16;
// Neighbours that upsampling looks at: pixels closer than this to an edge that a crop made are not those of
// the whole picture.
constexpr std::int64_t margin = 8;
constexpr int max_scans = 500;  // a small file could ask for days of work

constexpr std::string_view exif_marker("Exif\0\0", 6), xmp_marker("http://ns.adobe.com/xap/1.0/\0", 29);

template <class Codec>
JpegFile& file_of(Codec* codec) {
  return *static_cast<JpegFile*>(codec->client_data);
}

std::string message_of(j_common_ptr codec) {
  std::array<char, JMSG_LENGTH_MAX> text{};
  codec->err->format_message(codec, text.data());
  return text.data();
}

/// What follows the marker's name; empty if it has another.
std::span<const std::byte> after(std::string_view name, const jpeg_marker_struct& marker) {
  if (marker.data_length < name.size() || std::memcmp(marker.data, name.data(), name.size()) != 0) return {};
  return std::as_bytes(std::span(marker.data, marker.data_length)).subspan(name.size());
}

/// Product of two fractions of 255.
int product(int a, int b) {
  const int value = a * b + 128;
  return ((value >> 8) + value) >> 8;
}

/// Of Adobe's CMYK, where 0 is full ink.
void rgb_of_cmyk(const std::uint8_t* cmyk, std::int64_t pixels, std::uint8_t* rgb) {
  for (; pixels > 0; --pixels, cmyk += 4, rgb += 3)
    for (int c = 0; c < 3; ++c)
      rgb[c] = static_cast<std::uint8_t>(std::max(cmyk[3] - product(255 - cmyk[c], cmyk[3]), 0));
}

}  // namespace

JpegFile::JpegFile() {
  codec_.err = jpeg_std_error(&errors_);
  codec_.client_data = this;
  errors_.error_exit = [](j_common_ptr codec) {
    std::string& error = file_of(codec).error_;
    error = codec->err->msg_code == JERR_OUT_OF_MEMORY
                ? ""
                : fmt::format("libjpeg cannot read it: {}", message_of(codec));
    std::longjmp(file_of(codec).give_up_, 1);
  };
  errors_.emit_message = [](j_common_ptr codec, int level) {
    std::string& warning = file_of(codec).warning_;
    if (level < 0 && warning.empty()) warning = message_of(codec);
  };
  run([&] { jpeg_create_decompress(&codec_); });
  // All of the file is in memory: whoever asks for more has come to its end.
  source_.init_source = [](j_decompress_ptr) {};
  source_.term_source = [](j_decompress_ptr) {};
  source_.resync_to_restart = jpeg_resync_to_restart;
  source_.fill_input_buffer = [](j_decompress_ptr codec) -> boolean {
    file_of(codec).error_ = fmt::format("the JPEG is truncated: its bytes end at row {} of {}",
                                        codec->output_scanline, codec->output_height);
    std::longjmp(file_of(codec).give_up_, 1);
  };
  source_.skip_input_data = [](j_decompress_ptr codec, long bytes) {
    if (bytes <= 0) return;
    jpeg_source_mgr& source = *codec->src;
    if (static_cast<std::size_t>(bytes) > source.bytes_in_buffer) source.fill_input_buffer(codec);
    source.next_input_byte += bytes;
    source.bytes_in_buffer -= static_cast<std::size_t>(bytes);
  };
  codec_.src = &source_;
  progress_.progress_monitor = [](j_common_ptr codec) {
    if (reinterpret_cast<j_decompress_ptr>(codec)->input_scan_number <= max_scans) return;
    file_of(codec).error_ = fmt::format("the JPEG has more than {} scans", max_scans);
    std::longjmp(file_of(codec).give_up_, 1);
  };
  codec_.progress = &progress_;
  run([&] { jpeg_save_markers(&codec_, JPEG_APP0 + 1, 0xFFFF); });
}

JpegFile::~JpegFile() { jpeg_destroy_decompress(&codec_); }

/// Calls of libjpeg, which leaves them by longjmp: they keep no object that has a destructor.
template <class Calls>
void JpegFile::run(const Calls& calls) {
  if (setjmp(give_up_) != 0) {
    if (error_.empty()) throw std::bad_alloc();
    throw DataError("{}", error_);
  }
  calls();
}

bool JpegFile::fits(std::span<const std::byte> file) {
  return file.size() >= 3 && std::memcmp(file.data(), "\xFF\xD8\xFF", 3) == 0;
}

StoredPicture JpegFile::open(std::span<const std::byte> file) {
  warning_.clear();
  jpeg_abort_decompress(&codec_);
  source_.next_input_byte = reinterpret_cast<const JOCTET*>(file.data());
  source_.bytes_in_buffer = file.size();
  run([&] { jpeg_read_header(&codec_, TRUE); });
  const int colours = codec_.num_components;
  if (colours != 1 && colours != 3 && colours != 4)
    throw DataError("the JPEG has {} colour components, which is neither grey, RGB nor CMYK", colours);
  StoredPicture stored{.height = codec_.image_height, .width = codec_.image_width};
  for (const jpeg_marker_struct* marker = codec_.marker_list; marker; marker = marker->next) {
    if (stored.exif.empty()) stored.exif = after(exif_marker, *marker);
    if (const auto xmp = after(xmp_marker, *marker); !xmp.empty()) stored.xmp = xmp;
  }
  return stored;
}

void JpegFile::read(const Box<std::int64_t>& part, int reduction, std::uint8_t* pixels) {
  codec_.scale_num = 1;
  codec_.scale_denom = static_cast<unsigned>(reduction);
  codec_.out_color_space = codec_.num_components == 4 ? JCS_CMYK : JCS_RGB;
  run([&] {
    jpeg_start_decompress(&codec_);
    read_rows(part, pixels);
    jpeg_abort_decompress(&codec_);
  });
}

void JpegFile::read_rows(const Box<std::int64_t>& part, std::uint8_t* pixels) {
  const std::int64_t all = codec_.output_width, colours = codec_.output_components;
  JDIMENSION first = 0;
  if (part.width < all) {
    first = static_cast<JDIMENSION>(std::max(part.left - margin, std::int64_t{0}));
    auto width = static_cast<JDIMENSION>(std::min(part.left + part.width + margin, all) - first);
    jpeg_crop_scanline(&codec_, &first, &width);  // `first` moves to the left edge of an MCU
  }
  const bool direct = part.width == all && colours == 3;
  const std::int64_t stride = codec_.output_width * colours;
  if (!direct) strip_.resize(static_cast<std::size_t>(rows_at_once * stride));
  if (part.top > 0) jpeg_skip_scanlines(&codec_, static_cast<JDIMENSION>(part.top));
  for (std::int64_t y = 0; y < part.height;) {
    std::uint8_t* const into = pixels + 3 * y * part.width;
    std::array<JSAMPROW, rows_at_once> rows{};
    for (int i = 0; i < rows_at_once; ++i)
      rows[i] = direct ? into + 3 * i * part.width : strip_.data() + i * stride;
    const auto wanted = static_cast<JDIMENSION>(std::min<std::int64_t>(rows_at_once, part.height - y));
    const std::int64_t done = jpeg_read_scanlines(&codec_, rows.data(), wanted);
    for (std::int64_t i = 0; i < done && !direct; ++i) {
      const std::uint8_t* const row = strip_.data() + i * stride + (part.left - first) * colours;
      if (colours == 4)
        rgb_of_cmyk(row, part.width, into + 3 * i * part.width);
      else
        std::copy_n(row, 3 * part.width, into + 3 * i * part.width);
    }
    y += done;
  }
}

void encode_jpeg(const Picture& picture, int quality, std::vector<std::byte>& into) {
  if (std::max(picture.height, picture.width) > JPEG_MAX_DIMENSION)
    throw DataError("{} x {} pixels are too many for JPEG", picture.height, picture.width);
  jpeg_compress_struct codec{};
  jpeg_error_mgr errors{};
  std::jmp_buf give_up;
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  codec.err = jpeg_std_error(&errors);
  codec.client_data = &give_up;
  errors.error_exit = [](j_common_ptr failed) {
    std::longjmp(*static_cast<std::jmp_buf*>(failed->client_data), 1);
  };
  if (setjmp(give_up) != 0) {  // of pixels in memory only memory can be lacking
    jpeg_destroy_compress(&codec);
    std::free(bytes);
    throw std::bad_alloc();
  }
  jpeg_create_compress(&codec);
  jpeg_mem_dest(&codec, &bytes, &size);
  codec.image_height = static_cast<JDIMENSION>(picture.height);
  codec.image_width = static_cast<JDIMENSION>(picture.width);
  codec.input_components = 3;
  codec.in_color_space = JCS_RGB;
  jpeg_set_defaults(&codec);
  jpeg_set_quality(&codec, quality, TRUE);
  jpeg_start_compress(&codec, TRUE);
  while (codec.next_scanline < codec.image_height) {
    auto* row = const_cast<JSAMPLE*>(picture.row(codec.next_scanline));
    jpeg_write_scanlines(&codec, &row, 1);
  }
  jpeg_finish_compress(&codec);
  jpeg_destroy_compress(&codec);
  const auto* const begin = reinterpret_cast<const std::byte*>(bytes);
  into.assign(begin, begin + size);
  std::free(bytes);
}

}  // namespace lockstep::data
