// Pixels of PNG files, by libpng.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/stored_picture.h"

namespace lockstep::data {

/// Reads files one after another. Everything throws DataError.
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
