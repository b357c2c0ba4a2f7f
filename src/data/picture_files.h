// Pixels as files of pictures store them.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include <jpeglib.h>  // needs what stands above

#include "data/picture.h"

namespace lockstep::data {

/// What a file stores, before it is turned upright.
struct StoredPicture {
  std::int64_t height = 0, width = 0;
  std::span<const std::byte> exif{};  ///< a TIFF header and what follows; empty: none
  std::span<const std::byte> xmp{};   ///< text; empty: none
};

/// JPEG, by libjpeg-turbo. Reads files one after another; everything throws DataError.
class JpegFile {
 public:
  JpegFile();
  ~JpegFile();
  JpegFile(const JpegFile&) = delete;
  JpegFile& operator=(const JpegFile&) = delete;

  static bool fits(std::span<const std::byte> file);  ///< by its first bytes
  /// Begins with a file, which must stay for read(); the spans stay until the next call.
  StoredPicture open(std::span<const std::byte> file);
  /// RGB of a part of the picture that the reduction leaves: ceil(height / reduction) by ceil(width /
  /// reduction).
  void read(const Box<std::int64_t>& part, int reduction, std::uint8_t* pixels);
  const std::string& warning() const { return warning_; }  ///< of the last file; empty: none

 private:
  template <class Calls>
  void run(const Calls& calls);
  void read_rows(const Box<std::int64_t>& part, std::uint8_t* pixels);

  jpeg_decompress_struct codec_{};
  jpeg_error_mgr errors_{};
  jpeg_source_mgr source_{};
  jpeg_progress_mgr progress_{};
  std::jmp_buf give_up_{};
  std::string error_, warning_;
  std::vector<std::uint8_t> strip_;  // rows from the edge of an MCU on, or of CMYK
};

/// RGB as a JPEG file with 4:2:0 chroma. quality: 1 to 100.
void encode_jpeg(const Picture& picture, int quality, std::vector<std::byte>& into);

/// PNG, by libpng. Reads files one after another; everything throws DataError.
class PngFile {
 public:
  static bool fits(std::span<const std::byte> file);  ///< by its first bytes
  /// Begins with a file, which must stay for read().
  StoredPicture open(std::span<const std::byte> file);
  /// RGB of a part of the picture.
  void read(const Box<std::int64_t>& part, std::uint8_t* pixels);
  const std::string& warning() const { return warning_; }  ///< of the last file; empty: none

 private:
  class Codec;
  template <class Calls>
  void run(const Calls& calls);
  void read_rows(Codec& codec, const Box<std::int64_t>& part, std::uint8_t* pixels);

  std::span<const std::byte> rest_;  // what libpng has not read yet
  StoredPicture stored_;
  std::jmp_buf give_up_{};
  std::string error_, warning_;
  std::vector<std::uint8_t> scratch_;  // a row, or all rows of an interlaced picture
};

}  // namespace lockstep::data
