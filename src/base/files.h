// Private to the library: files and directories through the system's own calls, every failure an error with
// path and exit code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep {

/// Throws "PATH: cannot ACTION: REASON": DataError if the storage is full or read-only (ENOSPC, EDQUOT,
/// EROFS), has no such file or has one already, UsageError if it is not for us to use (permissions, loops of
/// links, something that is no directory on the way), FailureError otherwise.
[[noreturn]] void throw_system_error(int error, const std::string& path, std::string_view action);

/// An open regular file: a named pipe, a device or a directory is refused at once (DataError where it is to
/// be read, UsageError where it is to be written). Modes that write do not follow a link that stands at
/// `path` (UsageError); links on the way there are followed. Closes quietly on destruction; what must be
/// known to be stored is synced before.
class OpenFile {
 public:
  enum class Mode { read, write, create_or_truncate, read_write_or_create };

  OpenFile(std::string path, Mode mode);
  OpenFile(OpenFile&& other) noexcept
      : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}
  OpenFile& operator=(OpenFile&&) = delete;
  ~OpenFile();

  int descriptor() const noexcept { return descriptor_; }
  const std::string& path() const noexcept { return path_; }
  std::uint64_t size() const;

  /// Exactly `bytes` at `offset`, whatever their number. DataError at the end of the file.
  void read_at(std::uint64_t offset, void* data, std::uint64_t bytes) const;
  void write_at(std::uint64_t offset, const void* data, std::uint64_t bytes);
  void truncate(std::uint64_t bytes);
  /// Everything written so far is on storage when it returns.
  void sync();

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// "a/b/c.h5" -> "a/b", "c.h5"; "." for a bare name.
std::string directory_of(const std::string& path);
std::string file_name_of(const std::string& path);

bool exists(const std::string& path);
/// With all directories on the way, each name on storage when it returns; one that is there already is fine.
void make_directories(const std::string& path);
void rename_file(const std::string& from, const std::string& to);
/// A file that is not there is fine.
void remove_file(const std::string& path);
/// As remove_file, keeping quiet about everything.
void remove_quietly(const std::string& path) noexcept;
/// Names made and removed in it so far are on storage when it returns.
void sync_directory(const std::string& path);

/// The whole of a small file. DataError if it is larger than `most_bytes`.
std::string read_text(const std::string& path, std::uint64_t most_bytes = std::uint64_t{1} << 26);
/// Makes `path` a symbolic link to `target`, replacing one. False where the file system has none.
bool replace_link(const std::string& path, const std::string& target);

/// The name under which a file is written before it has its own: "a/b/.c.h5.tmp", "a/b/.c.h5.MARK.tmp".
std::string temporary_path(const std::string& path, std::string_view mark = {});

}  // namespace lockstep
