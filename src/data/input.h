// Private to the module: input files, plain or gzipped.
#pragma once

#include <zlib.h>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/prepare.h"
#include "lockstep/hdf5/file.h"

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

/// UsageError unless the file may be made, before anything is read: Output says which may. `statistics`: a
/// data file that is read, too; or empty.
void check_output(std::span<const std::string> inputs, const Output& output,
                  const std::string& statistics = {});

/// write(file) fills a new file, which gets the output's name when it is on storage. If anything fails,
/// nothing is left behind, and a file that was there is as it was.
void write_whole(const Output& output, const std::function<void(hdf5::File&)>& write);

}  // namespace lockstep::data
