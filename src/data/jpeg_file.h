// Pixels of JPEG files, by libjpeg-turbo.
#pragma once

#include <jpeglib.h>
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>  // jpeglib.h needs it
#include <span>
#include <string>
#include <vector>

#include "data/stored_picture.h"

namespace lockstep::data {

/// Reads files one after another. Everything throws DataError.
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

}  // namespace lockstep::data
