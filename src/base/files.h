// Private to the library: files and directories by system calls; every failure is an error with its path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep {

/// Throws "PATH: cannot ACTION: REASON": DataError if the storage is full or read-only (ENOSPC, EDQUOT,
/// EROFS), if a file is missing or exists already, UsageError if the path cannot be used (permissions, loops
/// of links, a parent that is not a directory), FailureError otherwise.
[[noreturn]] void throw_system_error(int error, const std::string& path, std::string_view action);

/// An open regular file. Named pipes, devices and directories are refused (DataError to read, UsageError to
/// write). Modes that write do not follow a link at `path` itself (UsageError), only links in its parents.
/// The destructor closes without errors; call sync() before.
class OpenFile {
 public:
  enum class Mode { read, write, create_or_truncate, read_write_or_create };

  /// wait_s: how long to wait for a name that does not exist yet.
  OpenFile(std::string path, Mode mode, double wait_s = 0);
  OpenFile(OpenFile&& other) noexcept
      : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}
  OpenFile& operator=(OpenFile&&) = delete;
  ~OpenFile();

  int descriptor() const noexcept { return descriptor_; }
  const std::string& path() const noexcept { return path_; }
  std::uint64_t size() const;

  /// Reads exactly `bytes` bytes at `offset`; any number. DataError at the end of the file.
  void read_at(std::uint64_t offset, void* data, std::uint64_t bytes) const;
  void write_at(std::uint64_t offset, const void* data, std::uint64_t bytes);
  /// Appends the text, all or nothing. DataError if the file has been removed.
  void append(std::string_view text);
  void truncate(std::uint64_t bytes);
  /// Returns when everything written so far is on storage.
  void sync();

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// What the path of an open file refers to now.
enum class NameTarget { same_file, other_file, nothing };
NameTarget name_target(const OpenFile& file);

/// "a/b/c.h5" -> "a/b", "c.h5"; "." for a bare name.
std::string directory_of(const std::string& path);
std::string file_name_of(const std::string& path);

bool exists(const std::string& path);
/// False also if the path cannot be followed.
bool is_directory(const std::string& path);
/// Makes the directory and its parents, synced; existing ones are not an error.
void make_directories(const std::string& path);
void rename_file(const std::string& from, const std::string& to);
/// A missing file is not an error.
void remove_file(const std::string& path);
/// As remove_file, without errors.
void remove_quietly(const std::string& path) noexcept;
/// Syncs the names that were created and removed in the directory.
void sync_directory(const std::string& path);

/// The whole of a small file. DataError if it is larger than `max_bytes`.
std::string read_text(const std::string& path, std::uint64_t max_bytes = std::uint64_t{1} << 26);
/// The whole lines among the last bytes of a file.
struct EndOfFile {
  std::string text;
  std::uint64_t offset = 0;  ///< of the text in the file
};
/// Leaves out the first line if it begins before these bytes, and the last one if it is incomplete.
EndOfFile lines_at_end(const OpenFile& file, std::uint64_t max_bytes);

/// Makes `path` a symbolic link to `target`, replacing one. False if the file system does not support links.
bool replace_link(const std::string& path, const std::string& target);

/// The temporary name of a file while it is written: "a/b/.c.h5.tmp", "a/b/.c.h5.MARK.tmp".
std::string temporary_path(const std::string& path, std::string_view mark = {});

}  // namespace lockstep
