// Private to the library: what may be written where. Every verb and log that makes a file under a name that
// the user gave asks check_output() before it works, writes a Draft next to that name, and publishes it.
#pragma once

#include <span>
#include <string>

#include "base/files.h"

namespace lockstep {

struct OutputCheck {
  bool replace = false;                   ///< a regular file that is there may go
  std::span<const std::string> inputs{};  ///< files that are read, and folders of them: none of them may go
};

/// UsageError unless a file may be made at `path`: the name is not empty, its directory is there and can be
/// written, and the name is free, or a regular file's that may be replaced. Whatever `check` says, no input
/// may be replaced, and no link, directory, device, pipe or socket.
void check_output(const std::string& path, const OutputCheck& check = {});

/// A file or a directory that this process has made and that is not yet what it is to be. The destructor
/// removes it, and so does the end of the process by SIGINT, SIGTERM or SIGHUP, where no handler takes these:
/// nothing half-made stays behind. Any thread.
class Draft {
 public:
  enum class Kind { file, directory };

  /// Of what was made at `path` just now. A directory goes with all that is in it.
  explicit Draft(std::string path, Kind kind = Kind::file);
  ~Draft();
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  const std::string& path() const { return path_; }
  /// The draft, whole and synced by its writer, becomes `path`, and the name is on storage when this returns.
  /// Replaces a file that is there, unless `replace` is false (UsageError). Leaves the draft if it fails. Of
  /// a file only.
  void publish(const std::string& path, bool replace = true);

 private:
  std::string path_;
  Kind kind_;
  bool listed_ = true;
};

/// write(file) fills a file under its temporary name; when it returns, `path` is that file, whole and synced,
/// whatever was there. If anything fails, or a signal ends the process, `path` is as it was.
template <class Write>
void write_whole(const std::string& path, const std::string& temporary, const Write& write) {
  OpenFile file(temporary, OpenFile::Mode::create_or_truncate);
  Draft draft(temporary);
  write(file);
  file.sync();
  draft.publish(path);
}
/// Writes a small file through ".NAME.tmp" and a rename, synced: afterwards it is there whole, or as it was.
void write_text_atomically(const std::string& path, const std::string& text);

}  // namespace lockstep
