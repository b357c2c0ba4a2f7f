#include "checkpoint/live_file.h"

#include <sys/stat.h>

#include <filesystem>
#include <system_error>

namespace lockstep::checkpoint {
namespace {

/// Behind the links that stand at the end of a path; where they lead nowhere, the name that is not there.
std::string target_of(const std::string& path) {
  constexpr int most_links = 40;  // as the system
  std::filesystem::path target = path;
  std::error_code error;
  for (int links = 0; links < most_links; ++links) {
    const std::filesystem::path next = std::filesystem::read_symlink(target, error);
    if (error) return target;
    target = next.is_absolute() ? next : target.parent_path() / next;
  }
  return path;  // opening it says what is wrong
}

void check_no_directory(const std::string& path) {
  std::error_code ignored;  // what is wrong with the path, opening says
  if (!std::filesystem::is_directory(path, ignored)) return;
  const std::string latest = path + "/checkpoints/latest";
  throw DataError("{}: is a directory; a checkpoint is a file{}", path,
                  exists(latest) ? ", such as " + latest : "");
}

}  // namespace

std::shared_ptr<const OpenFile> open_live(const std::string& path) {
  check_no_directory(path);
  for (int attempt = 1;; ++attempt) {
    const std::string target = target_of(path);
    try {
      return std::make_shared<const OpenFile>(target, OpenFile::Mode::read);
    } catch (const DataError& error) {
      if (target == path) throw;
      if (attempt == most_live_attempts) throw DataError("{}: leads to {}", path, error.what());
    }
  }
}

std::shared_ptr<const OpenFile> open_if_there(const std::string& target) {
  try {
    return std::make_shared<const OpenFile>(target, OpenFile::Mode::read);
  } catch (const DataError&) {
    if (exists(target)) throw;
    return nullptr;
  }
}

Named named_now(const OpenFile& file) {
  struct stat open {
  }, named{};
  if (::fstat(file.descriptor(), &open) != 0 || ::stat(file.path().c_str(), &named) != 0)
    return Named::nothing;
  return open.st_dev == named.st_dev && open.st_ino == named.st_ino ? Named::itself : Named::another;
}

}  // namespace lockstep::checkpoint
