#include "checkpoint/memory_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/system_error.h"

namespace lockstep::checkpoint {
namespace {

constexpr const char* memory_name = "the layout in memory";

}  // namespace

MemoryFile::MemoryFile() {
  // Where there is no file system in memory, one on a local disk serves: the file is small and short-lived.
  const char* const variable = std::getenv("TMPDIR");
  for (const std::string directory : {"/dev/shm", variable ? variable : "/tmp"}) {
    path_ = directory + "/lockstep-layout-XXXXXX";
    descriptor_ = ::mkostemp(path_.data(), O_CLOEXEC);
    if (descriptor_ >= 0) return;
  }
  throw_system_error(errno, path_, "create (TMPDIR names the folder)");
}

MemoryFile::~MemoryFile() {
  unlink();
  ::close(descriptor_);
}

void MemoryFile::unlink() noexcept {
  if (!path_.empty()) ::unlink(path_.c_str());
  path_.clear();
}

std::uint64_t MemoryFile::size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) throw_system_error(errno, memory_name, "look at");
  return static_cast<std::uint64_t>(status.st_size);
}

void MemoryFile::copy_to(OpenFile& file, std::uint64_t from, std::uint64_t to) const {
  const auto last = static_cast<off_t>(to);
  std::vector<std::byte> buffer(std::min(to - from, std::uint64_t{1} << 20));
  for (auto begin = static_cast<off_t>(from), end = begin; begin < last; begin = end) {
    begin = ::lseek(descriptor_, begin, SEEK_DATA);
    if (begin < 0 && errno == ENXIO) return;  // only a hole is left
    end = begin < 0 ? begin : ::lseek(descriptor_, begin, SEEK_HOLE);
    if (end < 0) throw_system_error(errno, memory_name, "search");
    end = std::min(end, last);
    for (off_t at = begin; at < end;) {
      const ssize_t done = ::pread(descriptor_, buffer.data(),
                                   std::min(buffer.size(), static_cast<std::size_t>(end - at)), at);
      if (done <= 0) throw_system_error(done < 0 ? errno : EIO, memory_name, "read");
      file.write_at(static_cast<std::uint64_t>(at), buffer.data(), static_cast<std::uint64_t>(done));
      at += done;
    }
  }
}

}  // namespace lockstep::checkpoint
