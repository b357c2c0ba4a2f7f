// Private to the library: writing output files: check_output() before the work, a Draft next to the name, and
// its publication.
#pragma once

#include <span>
#include <string>

#include "base/files.h"

namespace lockstep {

struct OutputCheck {
  bool replace = false;                   ///< an existing regular file may be replaced
  std::span<const std::string> inputs{};  ///< input files and folders, which are never replaced
};

/// UsageError unless a file can be created at `path`: the name is not empty, its directory exists and is
/// writable, and the name is free or a regular file that may be replaced. Inputs, links, directories,
/// devices, pipes and sockets are never replaced.
void check_output(const std::string& path, const OutputCheck& check = {});

struct ListedDraft;

/// An incomplete file or directory of this process. The destructor removes it. So does SIGINT, SIGTERM,
/// SIGHUP, SIGUSR1 or SIGUSR2, if it has no handler and ends the process. Any thread.
class Draft {
 public:
  enum class Kind { file, directory };

  /// Takes charge of the new file or directory at `path`. A directory is removed with its contents.
  explicit Draft(std::string path, Kind kind = Kind::file);
  ~Draft();
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  const std::string& path() const { return path_; }
  /// Renames the draft, a file that its writer has synced, to `path`, and syncs the name. Replaces an
  /// existing file, unless `replace` is false (UsageError). Keeps the draft on an error.
  void publish(const std::string& path, bool replace = true);

 private:
  std::string path_;
  Kind kind_;
  ListedDraft* entry_;  // in the list that a signal handler reads
  bool published_ = false;
};

/// Writes `path` atomically: write(file) fills a file under its temporary name, which is then synced and
/// renamed. If anything fails, or a signal ends the process, `path` is unchanged.
template <class Write>
void write_whole(const std::string& path, const std::string& temporary, const Write& write) {
  OpenFile file(temporary, OpenFile::Mode::create_or_truncate);
  Draft draft(temporary);
  write(file);
  file.sync();
  draft.publish(path);
}
/// The same for a text, through ".NAME.tmp".
void write_text_atomically(const std::string& path, const std::string& text);

}  // namespace lockstep
