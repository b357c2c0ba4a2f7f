// Private to the library: what may be written where. Every verb and log that makes a file under a name that
// the user gave asks check_output() before it works, writes a Draft beside that name, and publishes it.
#pragma once

#include <span>
#include <string>

namespace lockstep {

struct OutputCheck {
  bool replace = false;                   ///< a regular file that is there may go
  std::span<const std::string> inputs{};  ///< files that are read, and folders of them: none of them may go
};

/// UsageError unless a file may be made at `path`: the name is not empty, its directory is there and can be
/// written, and the name is free, or a regular file's that may be replaced. Whatever `check` says, no input
/// may be replaced, and no link, directory, device, pipe or socket.
void check_output(const std::string& path, const OutputCheck& check = {});

/// A file or a directory that is not yet what it is to be. The destructor removes it, and so does the end of
/// the process by SIGINT, SIGTERM or SIGHUP, where no handler takes these: nothing half-made stays behind.
/// Any thread.
class Draft {
 public:
  /// Of a file or directory that is made at `path` next, or is there already.
  explicit Draft(std::string path);
  ~Draft();
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  const std::string& path() const { return path_; }
  /// The draft, whole and synced by its writer, becomes `path`, and the name is on storage when this returns.
  /// Replaces a file that is there, unless `replace` is false (UsageError). Leaves the draft if it fails.
  void publish(const std::string& path, bool replace = true);

 private:
  std::string path_;
  bool listed_ = true;
};

}  // namespace lockstep
