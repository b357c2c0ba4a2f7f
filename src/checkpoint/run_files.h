// Private to the module: the files of a run but its checkpoints' contents: the lock, names by step, records
// about checkpoints, profile snapshots, and reading while a run moves its links and removes files.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/contents.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/run_directory.h"
#include "lockstep/comm/communicator.h"

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

/// Holds an exclusive lock on the file during its lifetime, and removes the file at the end.
///
/// flock decides: the system releases it when the holder dies for any reason. Only on file systems without
/// locks the text of the file decides: a holder on this host is looked up, a holder on another host counts as
/// alive.
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

/// How often a name is looked up before a failure is an error: a run prunes the target of a link at most once
/// per save.
inline constexpr int most_live_attempts = 32;

/// Opens the file that `path` names now, for reading; OpenFile::path() is its own name, with all links
/// resolved. The open file stays readable if the names change. If a link's file is pruned before it is open,
/// the link is followed again, a few times. DataError as OpenFile, and if the path is a directory.
std::shared_ptr<const OpenFile> open_live(const std::string& path);

/// The same for a name that open_live() has resolved; null if the name no longer exists.
std::shared_ptr<const OpenFile> open_if_there(const std::string& target);

/// What a file's own name leads to now.
enum class Named { itself, another, nothing };
Named named_now(const OpenFile& file);

/// Calls read(file) with an open_live() file, for libraries that open it by name a second time. Repeats, a
/// few times, if the name has come to lead to another file meanwhile.
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

/// Results of evaluations, in a file next to the checkpoints: a checkpoint is saved before it is evaluated.
/// RUN/checkpoints/evaluations.json: {"500": {"eval_loss": 0.31, ...}, ...}; null is a number that is not
/// finite. For one process. A file that cannot be parsed counts as empty, with a warning: evaluations can be
/// repeated.
class Evaluations {
 public:
  using Metrics = std::map<std::string, double>;

  Evaluations(std::string path, const Log& log);

  /// Null if it is not known.
  const double* find(std::int64_t step, const std::string& metric) const;
  void set(std::int64_t step, const Metrics& metrics);
  /// The files of these steps are being replaced or removed.
  void forget(std::span<const std::int64_t> steps);
  /// Later steps belong to a course that the run has abandoned.
  void forget_after(std::int64_t step);

 private:
  void write() const;

  std::string path_;
  std::map<std::int64_t, Metrics> of_step_;
};

/// RUN/checkpoints/starts: a line "STEP STARTS" for each checkpoint from which a run has started without
/// saving a newer one. A run that ends in order takes its own start back, so the file counts runs that were
/// killed or failed. For one process.
class AttemptCounter {
 public:
  explicit AttemptCounter(std::string path) : path_(std::move(path)) {}

  using Counts = std::map<std::int64_t, int>;

  /// By step.
  Counts read() const;
  void add(std::int64_t step);
  /// The run that the last add() counted ends in order.
  void take_back(std::int64_t step);
  /// A checkpoint newer than this step exists.
  void forget_up_to(std::int64_t step);

 private:
  void write(const Counts& counts) const;
  std::string path_;
};

/// The newest `keep`, and the best one by a metric. Metrics whose names end in "accuracy" are better when
/// they are greater, others when they are less. Of equals the earlier is the best.
class Retention {
 public:
  /// keep: 0 keeps all. metric: empty for none.
  Retention(int keep, std::string metric);

  const std::string& metric() const { return metric_; }
  /// The metric of the checkpoint of this step; none if it was not evaluated.
  void note(std::int64_t step, std::optional<double> metric);
  /// Of those that exist; none if none of them was evaluated.
  std::optional<std::int64_t> best(std::span<const std::int64_t> steps) const;

  /// Those of `steps` (newest first) to remove after `newest` was written. Later steps belong to a course
  /// that the run has abandoned; they do not count towards `keep`.
  std::vector<std::int64_t> to_remove(std::span<const std::int64_t> steps, std::int64_t newest) const;

 private:
  int keep_;
  std::string metric_;
  bool more_is_better_;
  std::map<std::int64_t, double> scores_;
};

std::string name_of_step(std::int64_t step);
/// The step in such a file name; -1 for any other name.
std::int64_t step_in_name(std::string_view name);

/// Steps that have a file, newest first; none if there is no such directory.
std::vector<std::int64_t> steps_in(const std::string& directory);
/// The same on every rank, as rank 0 sees it. Collective.
std::vector<std::int64_t> steps_in(const std::string& directory, comm::HostGroup& communicator);

/// Removes temporary files of interrupted saves, and logs it.
void remove_drafts(const std::string& directory, const Log& log);

class FileWriter;

/// Groups of power-function averages: "ema/sigma_rel=0.05".
bool is_profile_group(std::string_view path);

/// RUN/ema/step-000000500.h5: the power-function EMA weights of a step, kept when checkpoints are removed,
/// because EMA weights of other widths are made from them after training.
///
/// A snapshot holds /ema/sigma_rel=.../NAME, what is averaged only; /model/NAME, the other buffers of the
/// model; position, configuration and provenance as a checkpoint. It is whole or absent as a checkpoint is.
class ProfileSnapshots {
 public:
  /// Removes temporary files of interrupted saves. Collective.
  ProfileSnapshots(RunDirectory& run_directory, comm::HostGroup& communicator);

  /// Begins to save the snapshot that belongs to a checkpoint of these contents; none if they hold no
  /// power-function averages. Collective. Errors: save_file.
  std::unique_ptr<FileWriter> begin(const Contents& checkpoint, const SaveOptions& options);
  /// Removes the later of two neighbours closer than 1/32 of their step, but never the newest: a profile's
  /// width is a fraction of the time that has passed, so snapshots may get rarer with it. On rank 0 only.
  void thin(std::int64_t newest_step);
  /// Removes snapshots of later steps: a run that continues after this step takes another course. Collective.
  void drop_after(std::int64_t step);

 private:
  RunDirectory& run_directory_;
  comm::HostGroup& communicator_;
  Log log_;
};

}  // namespace lockstep::checkpoint
