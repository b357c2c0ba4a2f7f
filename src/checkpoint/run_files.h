// Private to the library: the files of a run: their names by step, reading while the run changes links and
// removes files, and the run's records of its checkpoints.
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

/// How long a new name of rank 0 may be missing on this rank: a network file system may cache its absence for
/// a minute on another node.
double name_delay_s(const comm::HostGroup& world);

/// Attempts to open a name before failure is an error. A run prunes the target of a link once per save at
/// most.
inline constexpr int max_live_attempts = 32;

/// make() on rank 0: its result, or its error, on every rank. The result must be representable in JSON.
/// Collective.
template <class Make>
auto from_rank_0(comm::HostGroup& group, const Make& make) {
  nlohmann::json result;
  comm::run_on_all(group, [&] {
    if (group.rank() == 0) result = make();
  });
  return comm::all_gather_json(group, result)[0].template get<decltype(make())>();
}

/// Opens the file that `path` names now, for reading; OpenFile::path() is its name with all links resolved.
/// The open file stays readable if names change. If the target of a link is pruned before it is open, it
/// follows the link again, a few times. DataError as OpenFile, and if the path is a directory.
std::shared_ptr<const OpenFile> open_live(const std::string& path);

/// Opens a name that open_live() has resolved; null if it no longer exists.
std::shared_ptr<const OpenFile> open_if_there(const std::string& target);

/// Calls read(file) with an open_live() file, for libraries that open it by name a second time. Repeats, a
/// few times, if the name refers to another file afterwards.
template <std::invocable<const std::shared_ptr<const OpenFile>&> Read>
auto read_live(const std::string& path, const Read& read) {
  for (int attempt = 1;; ++attempt) {
    const std::shared_ptr<const OpenFile> file = open_live(path);
    try {
      auto result = read(file);
      if (attempt == max_live_attempts || name_target(*file) != NameTarget::other_file) return result;
    } catch (const DataError&) {
      if (attempt == max_live_attempts || name_target(*file) == NameTarget::same_file) throw;
    }
  }
}

/// Results of evaluations, in a file next to the checkpoints because a checkpoint is saved before it is
/// evaluated. RUN/checkpoints/evaluations.json: {"500": {"eval_loss": 0.31, ...}, ...}; null is a number that
/// is not finite. For one process. A file that cannot be parsed counts as empty, with a warning.
class EvaluationRecords {
 public:
  using Metrics = std::map<std::string, double>;

  EvaluationRecords(std::string path, const Log& log);

  /// Null if unknown.
  const double* find(std::int64_t step, const std::string& metric) const;
  void set(std::int64_t step, const Metrics& metrics);
  /// Drops steps whose files are replaced or removed.
  void forget(std::span<const std::int64_t> steps);
  /// Drops later steps, which belong to an abandoned trajectory.
  void forget_after(std::int64_t step);

 private:
  void write() const;

  std::string path_;
  std::map<std::int64_t, Metrics> of_step_;
};

/// Counts the runs that resumed from a checkpoint and were killed or failed before they saved a newer one:
/// RUN/checkpoints/starts, a line "STEP STARTS" for each such checkpoint. A run that ends in order undoes its
/// attempt. For one process.
class AttemptCounter {
 public:
  explicit AttemptCounter(std::string path) : path_(std::move(path)) {}

  using Counts = std::map<std::int64_t, int>;

  /// The number of starts by step.
  Counts read() const;
  void add(std::int64_t step);
  /// Undoes the last add(), if the run ends in order.
  void take_back(std::int64_t step);
  /// Drops counts of this step and earlier ones, when a newer checkpoint exists.
  void forget_up_to(std::int64_t step);

 private:
  void write(const Counts& counts) const;
  std::string path_;
};

/// Which checkpoints to keep: the newest `keep`, and the best by a metric. The earliest of equal ones is the
/// best.
class Retention {
 public:
  /// keep: 0 keeps all. metric: empty: none.
  Retention(int keep, std::string metric, bool more_is_better = false);

  const std::string& metric() const { return metric_; }
  /// The metric of the checkpoint of this step; none if it was not evaluated.
  void note(std::int64_t step, std::optional<double> metric);
  /// The best of these steps; none if none was evaluated.
  std::optional<std::int64_t> best(std::span<const std::int64_t> steps) const;

  /// Those of `steps` (newest first) to remove after `newest` was written. Later steps belong to an abandoned
  /// trajectory, and do not count towards `keep`.
  std::vector<std::int64_t> to_remove(std::span<const std::int64_t> steps, std::int64_t newest) const;

 private:
  int keep_;
  std::string metric_;
  bool more_is_better_;
  std::map<std::int64_t, double> scores_;
};

std::string name_of_step(std::int64_t step);
/// The step of such a file name; -1 for any other name.
std::int64_t step_in_name(std::string_view name);

/// Steps that have a file, newest first; none if there is no such directory.
std::vector<std::int64_t> steps_in(const std::string& directory);
/// The same on every rank, from rank 0. Collective.
std::vector<std::int64_t> steps_in(const std::string& directory, comm::HostGroup& world);

/// Removes temporary files of interrupted saves, and logs it.
void remove_drafts(const std::string& directory, const Log& log);

}  // namespace lockstep::checkpoint
