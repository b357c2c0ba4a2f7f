// Private to the room: input files, plain or gzipped.
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

/// Reads a file from its start, gunzipping on the way. Everything throws DataError naming the file.
class Input {
 public:
  explicit Input(const std::string& path);

  const std::string& path() const { return path_; }
  /// Fills `out` as far as the file goes and returns how many bytes that was: fewer than asked only at the
  /// end.
  std::size_t read(std::span<std::byte> out);
  /// The next line without its end; false at the end of the file.
  bool read_line(std::string& line);
  std::int64_t lines() const {
    return lines_;
  }  ///< lines read so far: the number of the last one, counted from 1

 private:
  struct Closer {
    void operator()(gzFile_s* file) const { gzclose(file); }
  };

  bool refill();

  std::string path_;
  std::unique_ptr<gzFile_s, Closer> file_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // what of the buffer is not yet used
  std::int64_t lines_ = 0;
};

/// Reads the rest of a file and returns how many bytes that was.
std::int64_t count_rest(Input& input);

}  // namespace lockstep::data
