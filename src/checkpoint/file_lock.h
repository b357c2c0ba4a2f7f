// Private to the library: a lock on a file, and the text in it that names the holder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/files.h"

namespace lockstep::checkpoint {

/// The holder of a lock, as the text of its file.
struct LockHolder {
  std::string host;
  std::int64_t pid = 0;
  std::string started;  ///< boot and start time of the process, as a later one may have its pid
  std::string slurm_job;
  std::int64_t restart_count = 0;

  static LockHolder this_process();
  static LockHolder parse(const std::string& text);  ///< missing fields stay empty
  std::string to_text() const;
  /// "pid 123 on node7 (Slurm job 42, restart 1)".
  std::string describe() const;
  /// Same host, boot, pid and start time as a process that is alive.
  bool is_alive_here() const;
  bool is_earlier_start_of(const LockHolder& other) const;  ///< the same Slurm job, fewer restarts
  bool operator==(const LockHolder&) const = default;
};

/// Holds an exclusive lock on a file during its lifetime, and removes the file at the end.
/// flock decides, which the system releases when the holder dies. Only on file systems without locks the text
/// of the file decides: a holder on this host must be alive, one on another host counts as alive.
class FileLock {
 public:
  /// Tries until wait_s have passed, then takes over from an earlier start of the same Slurm job or throws
  /// UsageError naming the holder and what the lock guards. `say` gets a line when the wait begins, and one
  /// if the holder of the lock is dead.
  FileLock(const std::string& path, double wait_s, const std::function<void(const std::string&)>& say,
           const std::string& guarded = "this directory");
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  /// FailureError, naming the new holder, if the lock was taken over or its file was removed, which happens
  /// to a holder that hangs for long.
  void check_held() const;
  const LockHolder& holder() const { return self_; }

 private:
  bool try_to_take(const std::function<void(const std::string&)>& say);

  std::string path_;
  LockHolder self_ = LockHolder::this_process();
  std::unique_ptr<OpenFile> file_;
};

}  // namespace lockstep::checkpoint
