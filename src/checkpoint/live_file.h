// Private to the module: files of runs that continue while they are read: links move, and old files are
// pruned.
#pragma once

#include <concepts>
#include <memory>
#include <string>

#include "base/files.h"
#include "lockstep/base/error.h"

namespace lockstep::checkpoint {

/// How often a name is looked up before a failure is an error: a run prunes the file that a
/// link named a moment ago at most once a save.
inline constexpr int most_live_attempts = 32;

/// The file that `path` names now, open for reading; OpenFile::path() is its own name, behind all links.
/// It can be read to its end whatever becomes of the names. A link whose file is pruned before it is open is
/// followed again, a few times. DataError as OpenFile, and if it is a directory.
std::shared_ptr<const OpenFile> open_live(const std::string& path);

/// The same for a name that open_live() found, behind all links; none if the name is gone.
std::shared_ptr<const OpenFile> open_if_there(const std::string& target);

/// What a file's own name leads to by now.
enum class Named { itself, another, nothing };
Named named_now(const OpenFile& file);

/// read(file) of an open_live() file, where libraries open it by its own name once more: done again, a few
/// times, if that name led elsewhere meanwhile.
template <std::invocable<const std::shared_ptr<const OpenFile>&> Read>
auto read_live(const std::string& path, const Read& read) {
  for (int attempt = 1;; ++attempt) {
    const std::shared_ptr<const OpenFile> file = open_live(path);
    try {
      auto result = read(file);
      if (attempt == most_live_attempts || named_now(*file) != Named::another) return result;
    } catch (const DataError&) {
      if (attempt == most_live_attempts || named_now(*file) == Named::itself) throw;
    }
  }
}

}  // namespace lockstep::checkpoint
