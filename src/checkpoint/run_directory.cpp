#include "lockstep/checkpoint/run_directory.h"

#include <filesystem>

#include "base/files.h"
#include "checkpoint/digest.h"
#include "checkpoint/lock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::checkpoint {

class RunDirectory::Lock : public FileLock {
 public:
  using FileLock::FileLock;
};

namespace {

/// Of a directory and those it lies in, the ones that are not there yet, innermost first.
std::vector<std::string> missing_on_the_way_to(std::string path) {
  std::vector<std::string> missing;
  while (!exists(path)) {
    missing.push_back(path);
    const std::string outer = directory_of(path);
    if (outer == path) break;
    path = outer;
  }
  return missing;
}

}  // namespace

RunDirectory::RunDirectory(std::string path, comm::Communicator& communicator, double lock_wait_s)
    : path_(std::move(path)), communicator_(communicator) {
  while (path_.size() > 1 && path_.ends_with('/')) path_.pop_back();
  comm::together(communicator_, [&] {
    if (path_.empty()) throw UsageError("the name of the run directory is empty");
    if (communicator_.rank() != 0) return;
    made_ = missing_on_the_way_to(checkpoints_path());
    const auto take_lock = [&] {
      lock_ = std::make_unique<Lock>(path_ + "/lock", lock_wait_s,
                                     [](const std::string& line) { Log().warning("{}", line); });
    };
    make_directories(checkpoints_path());
    try {
      take_lock();
    } catch (const Error&) {
      if (exists(path_)) throw;
      make_directories(checkpoints_path());
      take_lock();  // another start failed meanwhile, and took the directory that it had made with it
    }
    make_directories(checkpoints_path());
    remove_file(temporary_path(config_path()));
  });
  std::uint64_t start = 0;
  if (lock_) {
    const std::string holder = lock_->holder().to_text();
    start = digest_of(holder.data(), holder.size());
  }
  communicator_.broadcast(&start, sizeof start, 0);
  mark_ = to_hex(start);
}

RunDirectory::~RunDirectory() {
  if (!lock_) return;
  std::error_code ignored;
  const bool configured = std::filesystem::exists(config_path(), ignored);
  if (configured || made_.empty()) return;
  // Nothing came of this start. Directories that hold something stay; the innermost goes under the lock.
  try {
    check_held();
  } catch (const std::exception&) {
    return;
  }
  std::filesystem::remove(made_.front(), ignored);
  lock_.reset();
  for (const std::string& directory : made_) std::filesystem::remove(directory, ignored);
}

std::optional<std::string> RunDirectory::stored_config() const {
  bool there = false;
  std::string text;
  comm::together(communicator_, [&] {
    if (communicator_.rank() != 0 || !exists(config_path())) return;
    text = read_text(config_path());
    there = true;
  });
  communicator_.broadcast(&there, sizeof there, 0);
  if (!there) return std::nullopt;
  return communicator_.all_gather_texts(text)[0];
}

void RunDirectory::write_config(const std::string& text) {
  comm::together(communicator_, [&] {
    if (communicator_.rank() != 0) return;
    check_held();
    write_text_atomically(config_path(), text);
  });
}

void RunDirectory::check_held() const {
  if (lock_) lock_->check_held();
}

}  // namespace lockstep::checkpoint
