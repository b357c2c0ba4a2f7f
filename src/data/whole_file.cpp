// Write, fsync, rename, fsync the folder.
#include "data/whole_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

/// Brings a file or a folder to disk.
void sync_to_disk(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool synced = descriptor >= 0 && fsync(descriptor) == 0;
  const int reason = errno;
  if (descriptor >= 0) close(descriptor);
  if (!synced) throw DataError("{}: cannot bring to disk: {}", path, std::strerror(reason));
}

/// Removes the temporary file unless it was renamed.
class Leftover {
 public:
  explicit Leftover(std::string path) : path_(std::move(path)) {}
  ~Leftover() { unlink(path_.c_str()); }
  Leftover(const Leftover&) = delete;
  Leftover& operator=(const Leftover&) = delete;

 private:
  std::string path_;
};

}  // namespace

void write_whole(const std::string& path, const std::function<void(hdf5::File&)>& write) {
  const std::string temporary = fmt::format("{}.tmp-{}", path, getpid());
  const Leftover leftover(temporary);
  hdf5::File file = hdf5::File::create(temporary, {.existing = hdf5::CreateOptions::Existing::replace});
  write(file);
  file.close();
  sync_to_disk(temporary);
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    throw DataError("{}: cannot rename {} to it: {}", path, temporary, std::strerror(errno));
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  sync_to_disk(folder.empty() ? "." : folder);
}

}  // namespace lockstep::data
