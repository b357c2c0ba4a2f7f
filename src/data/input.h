// Input files of lockstep prepare, plain or gzipped, and its output file.
#pragma once

#include <zlib.h>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/prepare.h"

namespace lockstep::data {

/// Reads a file from its start, gunzipping on the way. Everything throws DataError naming the file.
class Input {
 public:
  explicit Input(const std::string& path);

  const std::string& path() const { return path_; }
  /// Fills `out` and returns the number of bytes, fewer than its size only at the end of the file.
  std::size_t read(std::span<std::byte> out);
  /// The next line without its end; false at the end of the file.
  bool read_line(std::string& line);
  std::int64_t lines() const { return lines_; }  ///< the number of lines read so far

 private:
  struct Closer {
    void operator()(gzFile_s* file) const { gzclose(file); }
  };

  bool refill();

  std::string path_;
  std::unique_ptr<gzFile_s, Closer> file_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // the unused part of the buffer
  std::int64_t lines_ = 0;
};

/// A kind of file that is no text.
struct FileKind {
  std::string_view start;   ///< its first bytes
  std::string_view what;    ///< "a zip archive"
  std::string_view remedy;  ///< "unpack it"
  std::string_view
      reader{};  ///< of tables, how pandas reads it: "read_parquet(sys.argv[1])"; empty: it does not
};
/// The kind of a file that begins like this; null: it may be text.
const FileKind* kind_of_file(std::string_view start);

/// Reads the rest of a file and returns its number of bytes.
std::int64_t count_rest(Input& input);

/// UsageError unless the output file may be written (see Output), before anything is read. `statistics`:
/// another data file that is read, or empty.
void check_output(std::span<const std::string> inputs, const Output& output,
                  const std::string& statistics = {});

}  // namespace lockstep::data
