// metrics.jsonl and the progress line.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "lockstep/base/log.h"

namespace lockstep {
class OpenFile;
class Session;
}  // namespace lockstep

namespace lockstep::train {

/// RUN/metrics.jsonl: one JSON object a line; their steps never decrease. Only rank 0 writes; on other ranks
/// all calls do nothing.
class MetricsFile {
 public:
  /// Removes lines of steps after `resumed_step` (a killed run may have logged more than its last checkpoint
  /// has), an incomplete last line and, unless `evaluated`, the evaluations of `resumed_step`, which the run
  /// repeats. Then appends. Throws as throw_system_error if the file cannot be written, UsageError if it is a
  /// link or not a regular file.
  MetricsFile(const std::string& path, std::int64_t resumed_step, bool evaluated, bool writes);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  /// All or nothing. Throws as throw_system_error, DataError if the file has been removed.
  void append(const nlohmann::json& line);
  /// All appended lines are on storage when it returns.
  void sync();

 private:
  std::unique_ptr<OpenFile> file_;  // of the rank that writes
};

/// The time that a step takes lately. A start is slower, and evaluations end it.
class Pace {
 public:
  /// Of the last `steps` steps at least, and of less than twice as many.
  Pace(std::int64_t first_step, std::int64_t steps) : steps_(steps), older_{first_step}, newer_(older_) {}

  /// When so many steps are done, which took so long since the start. Never decrease.
  void at(std::int64_t steps_done, double seconds);
  double step_s() const { return step_s_; }  ///< 0 before the first step

 private:
  struct Moment {
    std::int64_t step;
    double seconds = 0;
  };
  std::int64_t steps_;
  Moment older_, newer_;
  double step_s_ = 0;
};

/// Shows the progress of a run: one line that is redrawn on a terminal, no wider than it; plain lines in a
/// file or a pipe, such as that of mpirun.
class Progress {
 public:
  /// Rank 0 shows it. `first_step`: the step that resume() returned.
  Progress(const Session& session, std::int64_t first_step, std::int64_t last_step,
           std::int64_t log_every = 20);
  /// Shows steps from first_step to last_step, if `shows`.
  Progress(Log log, bool shows, std::int64_t first_step, std::int64_t last_step, std::int64_t log_every);
  /// Keeps the line that is drawn on the terminal.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// After each step; draws at most a few times a second on a terminal, and every `log_every` steps in a
  /// file. The time left is by the pace of recent steps and counts `evaluations_left` of the length of the
  /// last one. On a terminal the line also
  /// has `data_wait_ms`, the time that a step waits for its data, if it is given.
  void step(std::int64_t steps_done, double loss, double samples_per_second, std::int64_t evaluations_left,
            std::optional<double> data_wait_ms = {});
  /// The same, with the speed of recent steps, by the session's global batch.
  void step(std::int64_t steps_done, double loss);
  /// Within an evaluation, when this fraction of it is done; 1 ends it. Draws as often on a terminal, and
  /// twice a minute in a file.
  void evaluation(std::int64_t steps_done, double fraction, std::int64_t evaluations_left);
  /// A line that stays: evaluations, checkpoints. On a terminal it takes the place of the drawn line.
  void note(const std::string& line);
  /// Keeps the drawn line.
  void finish();

 private:
  bool due(std::int64_t steps_done) const;
  void take_pace(std::int64_t steps_done);
  std::int64_t seconds_left(std::int64_t steps_done, double evaluations_left) const;
  void draw(std::initializer_list<std::string> parts, std::int64_t left_s, const std::string& last_part = "");

  Log log_;
  bool shows_, terminal_;
  std::int64_t last_step_, log_every_;
  double started_s_, drawn_s_ = 0;
  std::int64_t global_batch_ = 0;  // of the session; 0: not known
  Pace pace_;
  double evaluation_started_s_ = 0;                   // 0: no evaluation is running
  double last_evaluation_s_ = 0, evaluations_s_ = 0;  // the latter: of all
};

}  // namespace lockstep::train
