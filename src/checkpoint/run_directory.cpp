#include "lockstep/checkpoint/run_directory.h"

#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>

#include "base/clock.h"
#include "base/files.h"
#include "base/output.h"
#include "checkpoint/blocks.h"
#include "checkpoint/file_lock.h"
#include "checkpoint/run_files.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::checkpoint {
namespace {

/// The directories among this one and its parents that do not exist yet, innermost first.
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

std::string without_last_slashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

}  // namespace

RunDirectory::RunDirectory(std::string path, comm::HostGroup& world, double lock_wait_s)
    : path_(without_last_slashes(std::move(path))), world_(world) {
  const comm::NamedCall call(world_, "makes a Store or RunDirectory");
  comm::run_on_all(world_, [&] {
    if (path_.empty()) throw UsageError("the name of the run directory is empty");
    if (world_.rank() != 0) return;
    new_directories_ = missing_on_the_way_to(checkpoints_path());
    const auto take_lock = [&] {
      lock_ = std::make_unique<FileLock>(path_ + "/lock", lock_wait_s,
                                         [](const std::string& line) { Log().warning("{}", line); });
    };
    make_directories(checkpoints_path());
    try {
      take_lock();
    } catch (const Error&) {
      if (exists(path_)) throw;
      make_directories(checkpoints_path());
      take_lock();  // another run failed meanwhile and removed its directory
    }
    make_directories(checkpoints_path());
    remove_file(temporary_path(config_path()));
  });
  const std::string holder = world_.all_gather_texts(lock_ ? lock_->holder().to_text() : "")[0];
  mark_ = to_hex(digest_of(holder.data(), holder.size()));
  check_same_directory(holder);
}

RunDirectory RunDirectory::read_only(std::string path, comm::HostGroup& world) {
  return {ReadOnly{}, std::move(path), world};
}

RunDirectory::RunDirectory(ReadOnly /*tag*/, std::string path, comm::HostGroup& world)
    : path_(without_last_slashes(std::move(path))), world_(world), read_only_(true) {
  comm::run_on_all(world_, [&] {
    if (path_.empty()) throw UsageError("the name of the run directory is empty");
    const std::string lock = path_ + "/lock";
    if (world_.rank() != 0 || !exists(lock)) return;
    LockHolder holder;
    try {
      holder = LockHolder::parse(read_text(lock));
    } catch (const DataError&) {  // the run has just ended
      return;
    }
    if (holder.host == LockHolder::this_process().host && !holder.is_alive_here()) return;
    Log().warning("{}: is held by {}; no other run can start here before it ends", path_, holder.describe());
  });
}

/// All ranks write checkpoints, so all must see the directory whose lock rank 0 holds. A relative path, or a
/// disk local to each node, may lead to another one. A network file system may take a moment.
void RunDirectory::check_same_directory(const std::string& holder) const {
  comm::run_on_all(world_, [&] {
    const double deadline_s = monotonic_s() + name_delay_s(world_);
    while (world_.rank() != 0 && !sees_lock_of(holder)) {
      if (monotonic_s() > deadline_s) {
        std::error_code ignored;
        throw UsageError(
            "{}: on {}, this is another directory than on rank 0; give one that all "
            "ranks share, as an absolute path",
            path_, std::filesystem::current_path(ignored).string());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
}

bool RunDirectory::sees_lock_of(const std::string& holder) const {
  try {
    return LockHolder::parse(read_text(path_ + "/lock")) == LockHolder::parse(holder);
  } catch (const DataError&) {  // does not exist, or not yet
    return false;
  }
}

RunDirectory::~RunDirectory() {
  if (!lock_) return;
  std::error_code ignored;
  const bool configured = std::filesystem::exists(config_path(), ignored);
  if (configured || new_directories_.empty()) return;
  // This run has not been configured. Only empty directories go, the innermost while the lock is held.
  if (!is_held()) return;
  std::filesystem::remove(new_directories_.front(), ignored);
  lock_.reset();
  for (const std::string& directory : new_directories_) std::filesystem::remove(directory, ignored);
}

std::optional<std::string> RunDirectory::stored_config() const {
  const auto text = from_rank_0(world_, [&]() -> nlohmann::json {
    if (!exists(config_path())) return nullptr;
    return read_text(config_path());
  });
  if (text.is_null()) return std::nullopt;
  return text.get<std::string>();
}

void RunDirectory::write_config(const std::string& text) {
  comm::run_on_all(world_, [&] {
    if (world_.rank() != 0) return;
    check_held();
    write_text_atomically(config_path(), text);
  });
}

bool RunDirectory::is_held() const noexcept {
  try {
    check_held();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void RunDirectory::check_held() const {
  if (read_only_) throw LostDirectory("{}: was opened read-only", path_);
  if (lock_) lock_->check_held();
}

}  // namespace lockstep::checkpoint
