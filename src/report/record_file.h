// The records of TensorFlow's files (TFRecord): the length of the data as uint64, its masked CRC32C, the
// data, and their masked CRC32C; little endian.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/files.h"

namespace lockstep::report {

/// CRC32C (Castagnoli), not yet masked.
std::uint32_t crc32c(std::string_view data);
/// A record of these data.
std::string record_of(std::string_view data);

/// Reads the records of a file one after the other, through a buffer.
class RecordReader {
 public:
  explicit RecordReader(const OpenFile& file) : file_(file), size_(file.size()) {}

  /// The data of the next record, valid until the next call. None at the end of the file, and at a record
  /// that is incomplete or damaged.
  std::optional<std::string_view> next();
  /// The end of the last record, in bytes from the start of the file.
  std::uint64_t position() const { return position_; }

 private:
  std::optional<std::string_view> at(std::uint64_t offset, std::uint64_t bytes);

  const OpenFile& file_;
  std::uint64_t size_, position_ = 0;
  std::string buffer_;
  std::uint64_t buffer_offset_ = 0;  // of the buffer in the file
};

}  // namespace lockstep::report
