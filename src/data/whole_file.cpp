// Write, fsync, rename, fsync the folder.
#include "data/whole_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/base/system_error.h"

namespace lockstep::data {
namespace {

/// Brings a file or a folder to disk.
void sync_to_disk(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool synced = descriptor >= 0 && fsync(descriptor) == 0;
  const int reason = errno;
  if (descriptor >= 0) close(descriptor);
  if (!synced) throw_system_error(reason, path, "bring to disk");
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

/// Said under the name that the user gave; a failure to create would speak of the temporary one.
void check_place(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw UsageError("{}: is a directory; name the file to write", path);
  }
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const std::string folder = parent.empty() ? "." : parent;
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw UsageError("{}: cannot write: there is no directory {}; make it", path, folder);
  }
  if (access(folder.c_str(), W_OK | X_OK) != 0) throw_system_error(errno, path, "write in " + folder);
}

}  // namespace

void write_whole(const std::string& path, const std::function<void(hdf5::File&)>& write) {
  check_place(path);
  const std::string temporary = fmt::format("{}.tmp-{}", path, getpid());
  const Leftover leftover(temporary);
  hdf5::File file = hdf5::File::create(temporary, {.existing = hdf5::CreateOptions::Existing::replace});
  write(file);
  file.close();
  sync_to_disk(temporary);
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    throw_system_error(errno, path, "rename " + temporary + " to it");
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  sync_to_disk(folder.empty() ? "." : folder);
}

}  // namespace lockstep::data
