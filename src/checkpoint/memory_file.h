// Private to the room: a sparse file in memory, where HDF5 can work out a layout without touching storage.
#pragma once

#include <cstdint>
#include <string>

#include "base/files.h"

namespace lockstep::checkpoint {

/// HDF5 1.10 cannot recover from storage that fails while it closes a file: the library's own shutdown then
/// crashes. So the structure is made here, and what HDF5 wrote (payload is a hole) is copied out with our own
/// calls, whose errors are plain.
class MemoryFile {
 public:
  MemoryFile();
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  /// A path that opens it, until unlink(). (HDF5 resolves links, so one below /proc/self/fd would not do.)
  const std::string& path() const noexcept { return path_; }
  /// Takes the name away: the file then goes with the last descriptor, even if this process is killed.
  void unlink() noexcept;
  std::uint64_t size() const;
  /// Writes the bytes [begin, end) to the same place of `file`, but for holes.
  void copy_to(OpenFile& file, std::uint64_t begin, std::uint64_t end) const;

 private:
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace lockstep::checkpoint
