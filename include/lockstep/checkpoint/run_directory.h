// RunDirectory: the directory of a run, and the lock that keeps a second run out of it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

class FileLock;

/// Another start has taken over the run directory: this one must not write to it any more.
class LostDirectory : public FailureError {
 public:
  using FailureError::FailureError;
};

/// RUN/config.ini, RUN/metrics.jsonl, RUN/tensorboard/, RUN/checkpoints/, RUN/ema/, RUN/lock. Holds the lock
/// during its life.
/// Only rank 0 accesses the directory. The construction and methods marked so are collective, with the same
/// result on all ranks.
class RunDirectory {
 public:
  /// Creates missing directories and takes the lock. Waits, with a warning, up to lock_wait_s for another
  /// holder to end: a killed run's ranks can outlive their launcher by seconds. Takes over the lock of a dead
  /// run, and of the same Slurm job with a lower restart count. Collective. UsageError if the directory is
  /// not writable, another live run holds it (names host, pid and job), or ranks see different directories.
  RunDirectory(std::string path, comm::HostGroup& world, double lock_wait_s = 15);
  /// Creates nothing and takes no lock, to read a run, which may not exist. Warns if the lock is held.
  /// Collective.
  static RunDirectory read_only(std::string path, comm::HostGroup& world);
  /// Releases the lock. Removes empty directories that this object created if the run was not configured.
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::string& path() const { return path_; }
  bool is_read_only() const { return read_only_; }                         ///< whether nothing is written
  std::string config_path() const { return path_ + "/config.ini"; }        ///< the resolved configuration
  std::string metrics_path() const { return path_ + "/metrics.jsonl"; }    ///< one JSON object a line
  std::string tensorboard_path() const { return path_ + "/tensorboard"; }  ///< the folder of event files
  std::string checkpoints_path() const { return path_ + "/checkpoints"; }  ///< the folder of checkpoints
  std::string ema_path() const { return path_ + "/ema"; }                  ///< profile snapshots

  /// The text of RUN/config.ini; none if the run has not been configured yet. Collective.
  std::optional<std::string> stored_config() const;
  /// Writes RUN/config.ini, complete or not at all. Collective.
  void write_config(const std::string& text);

  /// On rank 0, LostDirectory if another run has taken over the lock, if its file was removed, or if this
  /// object is read-only: this run must not write here. No-op on other ranks. Not collective.
  void check_held() const;
  bool is_held() const noexcept;  ///< check_held() throws nothing
  /// Unique to this holder of the lock: part of the names of temporary files.
  const std::string& mark() const { return mark_; }

 private:
  struct ReadOnly {};
  RunDirectory(ReadOnly, std::string path, comm::HostGroup& world);
  void check_same_directory(const std::string& holder) const;
  bool sees_lock_of(const std::string& holder) const;

  std::string path_;
  comm::HostGroup& world_;
  bool read_only_ = false;
  std::unique_ptr<FileLock> lock_;  // rank 0's
  std::string mark_;
  std::vector<std::string>
      new_directories_;  // directories that this object created, innermost first; rank 0's
};

}  // namespace lockstep::checkpoint
