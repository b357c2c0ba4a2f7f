// Private to the module: the lock file of a run, and who holds it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/files.h"

namespace lockstep::checkpoint {

/// Who holds a lock, as the file says.
struct LockHolder {
  std::string host;
  std::int64_t pid = 0;
  std::string started;  ///< boot and start time of the process, so that a reused pid is not taken for it
  std::string slurm_job;
  std::int64_t restart_count = 0;

  static LockHolder this_process();
  static LockHolder parse(const std::string& text);  ///< what is missing stays empty
  std::string to_text() const;
  /// "pid 123 on node7 (Slurm job 42, restart 1)".
  std::string describe() const;
  /// Same host, boot, pid and start time as a process that is alive.
  bool is_alive_here() const;
  bool is_earlier_start_of(const LockHolder& other) const;  ///< the same Slurm job, fewer restarts
  bool operator==(const LockHolder&) const = default;
};

/// Holds an exclusive lock on the file while it lives; then removes it.
///
/// The truth is flock: the system drops it when the holder dies, however it dies. Only where the file system
/// has no locks does the text decide, as well as it can: a holder on this host is looked up, one on another
/// host counts as alive.
class FileLock {
 public:
  /// Tries until wait_s have passed, then takes over from an earlier start of the same Slurm job or throws
  /// UsageError naming the holder. `say` gets a line when the wait begins, and one if the lock is a dead
  /// holder's.
  FileLock(const std::string& path, double wait_s, const std::function<void(const std::string&)>& say);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  /// FailureError, naming the new holder, if the lock was taken over or its file removed: a holder that hung
  /// long enough to be taken for dead may wake again.
  void check_held() const;
  const LockHolder& holder() const { return self_; }

 private:
  bool try_to_take(const std::function<void(const std::string&)>& say);

  std::string path_;
  LockHolder self_ = LockHolder::this_process();
  std::unique_ptr<OpenFile> file_;
};

}  // namespace lockstep::checkpoint
