#include "lockstep/checkpoint/run_directory.h"

#include "checkpoint/digest.h"
#include "checkpoint/lock.h"
#include "checkpoint/storage.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::checkpoint {

class RunDirectory::Lock : public FileLock {
 public:
  using FileLock::FileLock;
};

RunDirectory::RunDirectory(std::string path, comm::Communicator& communicator, double lock_wait_s)
    : path_(std::move(path)), communicator_(communicator) {
  while (path_.size() > 1 && path_.ends_with('/')) path_.pop_back();
  comm::together(communicator_, [&] {
    if (path_.empty()) throw UsageError("the name of the run directory is empty");
    if (communicator_.rank() != 0) return;
    make_directories(path_);
    make_directories(checkpoints_path());
    lock_ = std::make_unique<Lock>(path_ + "/lock", lock_wait_s,
                                   [](const std::string& line) { Log().warning("{}", line); });
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

RunDirectory::~RunDirectory() = default;

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
