#include "base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>

#include "base/clock.h"
#include "base/progress.h"
#include "lockstep/base/error.h"

namespace lockstep {

void throw_system_error(int error, const std::string& path, std::string_view action) {
  const char* reason = std::strerror(error);
  switch (error) {
    case EFBIG:
      throw DataError("{}: cannot {}: {}; raise the limit of file sizes (ulimit -f), or write elsewhere",
                      path, action, reason);
    case ENOSPC:
    case EDQUOT:
      throw DataError("{}: cannot {}: {}; free some space or write elsewhere", path, action, reason);
    case EROFS:
    case ENOENT:
    case EEXIST:
    case EISDIR:
      throw DataError("{}: cannot {}: {}", path, action, reason);
    case EACCES:
    case EPERM:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
      throw UsageError("{}: cannot {}: {}", path, action, reason);
    default:
      throw FailureError("{}: cannot {}: {}", path, action, reason);
  }
}

namespace {

/// Linux moves at most 0x7ffff000 bytes a call.
constexpr std::uint64_t max_bytes_per_call = std::uint64_t{1} << 30;

int flags_of(OpenFile::Mode mode) {
  switch (mode) {
    case OpenFile::Mode::read:
      return O_RDONLY;
    case OpenFile::Mode::write:
      return O_WRONLY;
    case OpenFile::Mode::create_or_truncate:
      return O_WRONLY | O_CREAT | O_TRUNC;
    case OpenFile::Mode::read_write_or_create:
      return O_RDWR | O_CREAT;
  }
  return O_RDONLY;
}

std::string_view verb_of(OpenFile::Mode mode) {
  return mode == OpenFile::Mode::read || mode == OpenFile::Mode::write ? "open" : "create";
}

/// Repeats a call that a signal interrupted.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace

OpenFile::OpenFile(std::string path, Mode mode, double wait_s) : path_(std::move(path)) {
  const bool reads = mode == Mode::read;
  // O_NONBLOCK: opening a named pipe must not block.
  const int flags = flags_of(mode) | O_CLOEXEC | O_NONBLOCK | (reads ? 0 : O_NOFOLLOW);
  const auto open = [&] { return ::open(path_.c_str(), flags, 0666); };
  for (const Stopwatch watch;
       (descriptor_ = uninterrupted(open)) < 0 && errno == ENOENT && watch.elapsed_ms() < wait_s * 1e3;) {
    progress::tick();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const int error = errno;
  struct stat status {};
  if (descriptor_ < 0) {
    if (!reads && error == ELOOP && ::lstat(path_.c_str(), &status) == 0 && S_ISLNK(status.st_mode))
      throw UsageError("{}: cannot {}: it is a symbolic link, which Lockstep does not follow; remove it",
                       path_, verb_of(mode));
    if (error != ENXIO) throw_system_error(error, path_, verb_of(mode));  // ENXIO: a pipe or a device
  } else if (::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode)) {
    return;
  }
  if (descriptor_ >= 0) ::close(descriptor_);
  if (reads) throw DataError("{}: cannot {}: not a regular file", path_, verb_of(mode));
  throw UsageError("{}: cannot {}: it exists and is not a regular file; remove it", path_, verb_of(mode));
}

OpenFile::~OpenFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::uint64_t OpenFile::size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) throw_system_error(errno, path_, "look at");
  return static_cast<std::uint64_t>(status.st_size);
}

void OpenFile::read_at(std::uint64_t offset, void* data, std::uint64_t bytes) const {
  auto* to = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const std::size_t piece = std::min(bytes, max_bytes_per_call);
    const ssize_t done =
        uninterrupted([&] { return ::pread(descriptor_, to, piece, static_cast<off_t>(offset)); });
    if (done < 0) throw_system_error(errno, path_, "read");
    progress::tick();
    if (done == 0)
      throw DataError("{}: cannot read: the file ends at byte {}, {} bytes too early", path_, offset, bytes);
    to += done;
    offset += static_cast<std::uint64_t>(done);
    bytes -= static_cast<std::uint64_t>(done);
  }
}

void OpenFile::write_at(std::uint64_t offset, const void* data, std::uint64_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const std::size_t piece = std::min(bytes, max_bytes_per_call);
    const ssize_t done =
        uninterrupted([&] { return ::pwrite(descriptor_, from, piece, static_cast<off_t>(offset)); });
    if (done < 0) throw_system_error(errno, path_, "write");
    progress::tick();
    if (done == 0)
      throw FailureError("{}: cannot write: the system accepts no more bytes at offset {}", path_, offset);
    from += done;
    offset += static_cast<std::uint64_t>(done);
    bytes -= static_cast<std::uint64_t>(done);
  }
}

void OpenFile::append(std::string_view text) {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) throw_system_error(errno, path_, "look at");
  if (status.st_nlink == 0) throw DataError("{}: cannot write: the file has been removed", path_);
  try {
    write_at(static_cast<std::uint64_t>(status.st_size), text.data(), text.size());
  } catch (const Error&) {
    [[maybe_unused]] const int ignored = ::ftruncate(descriptor_, status.st_size);
    throw;
  }
}

void OpenFile::truncate(std::uint64_t bytes) {
  if (uninterrupted([&] { return ::ftruncate(descriptor_, static_cast<off_t>(bytes)); }) != 0) {
    throw_system_error(errno, path_, "resize");
  }
}

void OpenFile::sync() {
  if (uninterrupted([&] { return ::fsync(descriptor_); }) != 0) throw_system_error(errno, path_, "sync");
  progress::tick();
}

NameTarget name_target(const OpenFile& file) {
  struct stat open {
  }, target{};
  if (::fstat(file.descriptor(), &open) != 0 || ::stat(file.path().c_str(), &target) != 0)
    return NameTarget::nothing;
  const bool same = open.st_dev == target.st_dev && open.st_ino == target.st_ino;
  return same ? NameTarget::same_file : NameTarget::other_file;
}

std::string directory_of(const std::string& path) {
  const std::string directory = std::filesystem::path(path).parent_path().string();
  return directory.empty() ? "." : directory;
}

std::string file_name_of(const std::string& path) { return std::filesystem::path(path).filename().string(); }

bool exists(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0;
}

bool is_directory(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

void make_directories(const std::string& path) {
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string prefix = path.substr(0, slash);
    if (::mkdir(prefix.c_str(), 0777) == 0) {
      const std::string parent = directory_of(prefix);
      // A directory that is writable but not readable cannot be opened, and so not synced.
      if (::faccessat(AT_FDCWD, parent.c_str(), R_OK, AT_EACCESS) == 0) sync_directory(parent);
    } else {
      const int error = errno;
      struct stat status {};
      // In a read-only or foreign directory mkdir may report that even if the name exists.
      if (::stat(prefix.c_str(), &status) != 0) {
        if (error == ENOENT && exists(directory_of(prefix)))  // for example in /proc
          throw UsageError("{}: cannot create the directory: {} accepts none", prefix, directory_of(prefix));
        throw_system_error(error == EEXIST ? errno : error, prefix, "create the directory");
      }
      if (!S_ISDIR(status.st_mode))
        throw UsageError("{}: cannot create the directory: a file has this name", prefix);
    }
    if (slash == std::string::npos) return;
  }
}

void rename_file(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw_system_error(errno, to, "rename " + from + " to it");
}

void remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw_system_error(errno, path, "remove");
}

void remove_quietly(const std::string& path) noexcept { ::unlink(path.c_str()); }

void sync_directory(const std::string& path) {
  const int descriptor =
      uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (descriptor < 0) throw_system_error(errno, path, "open");
  const int result = uninterrupted([&] { return ::fsync(descriptor); });
  const int error = errno;
  ::close(descriptor);
  // Some network file systems refuse the call and sync directories without it.
  if (result != 0 && error != EINVAL && error != ENOTSUP) throw_system_error(error, path, "sync");
}

std::string read_text(const std::string& path, std::uint64_t max_bytes) {
  const OpenFile file(path, OpenFile::Mode::read);
  const std::uint64_t bytes = file.size();
  if (bytes > max_bytes) throw DataError("{}: {} bytes are too many for this file", path, bytes);
  std::string text(bytes, '\0');
  file.read_at(0, text.data(), bytes);
  return text;
}

EndOfFile lines_at_end(const OpenFile& file, std::uint64_t max_bytes) {
  const std::uint64_t size = file.size();
  EndOfFile end{.text = std::string(std::min(size, max_bytes), '\0'), .offset = 0};
  end.offset = size - end.text.size();
  file.read_at(end.offset, end.text.data(), end.text.size());
  end.text.resize(end.text.rfind('\n') + 1);  // empty if no line is complete
  const std::size_t first = end.offset > 0 ? end.text.find('\n') + 1 : 0;
  end.text.erase(0, first);
  end.offset += first;
  return end;
}

bool replace_link(const std::string& path, const std::string& target) {
  const std::string temporary = temporary_path(path);
  remove_file(temporary);
  if (::symlink(target.c_str(), temporary.c_str()) != 0) {
    if (errno == EPERM || errno == ENOTSUP || errno == ENOSYS) return false;
    throw_system_error(errno, temporary, "create the link");
  }
  try {
    rename_file(temporary, path);
  } catch (...) {
    remove_quietly(temporary);
    throw;
  }
  return true;
}

std::string temporary_path(const std::string& path, std::string_view mark) {
  return fmt::format("{}/.{}{}{}.tmp", directory_of(path), file_name_of(path), mark.empty() ? "" : ".", mark);
}

}  // namespace lockstep
