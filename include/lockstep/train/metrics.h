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
  /// repeats. Then appends. Throws like throw_system_error if the file cannot be written, UsageError if it is
  /// a link or not a regular file.
  MetricsFile(const std::string& path, std::int64_t resumed_step, bool evaluated, bool writes);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  /// Appends a line, all or nothing. Throws like throw_system_error, DataError if the file has been removed.
  void append(const nlohmann::json& line);
  /// Returns when all appended lines are on storage.
  void sync();

 private:
  std::unique_ptr<OpenFile> file_;  // of the rank that writes
};

/// The duration of recent steps. It begins again after a start and after evaluations, as first steps are
/// slower.
class Pace {
 public:
  /// The mean of at least the last `steps` steps, and of less than twice as many.
  Pace(std::int64_t first_step, std::int64_t steps) : steps_(steps), older_{first_step}, newer_(older_) {}

  /// Call it with the number of steps done and their time since the start, which never decrease.
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

/// Shows the progress of a run: one line that is redrawn on a terminal, not wider than the terminal, also by
/// way of an mpirun that passes it on to its terminal; plain lines in a file or another pipe.
class Progress {
 public:
  /// Rank 0 shows it. `first_step`: the step that resume() returned.
  Progress(const Session& session, std::int64_t first_step, std::int64_t last_step,
           std::int64_t log_every = 20);
  /// Shows steps from first_step to last_step, if `shows`. min_line_s: at least so long between two lines in
  /// a file, and between two lines of evaluations.
  Progress(Log log, bool shows, std::int64_t first_step, std::int64_t last_step, std::int64_t log_every,
           double min_line_s = 0);
  /// Keeps the drawn line on the terminal.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// After each step; draws at most a few times a second on a terminal, and every `log_every` steps in a
  /// file. The remaining time assumes the pace of recent steps and `evaluations_left` evaluations as long as
  /// the last one. On a terminal the line also has `data_wait_ms`, the time that a step waits for its data,
  /// if it is given; in a file, if it is more than 1 % of the step. tokens_per_second: of text.
  void step(std::int64_t steps_done, double loss, double samples_per_second, std::int64_t evaluations_left,
            std::optional<double> data_wait_ms = {}, std::optional<double> tokens_per_second = {});
  /// The same, with the speed of recent steps, by the session's global batch.
  void step(std::int64_t steps_done, double loss);
  /// Within an evaluation, when this fraction of it is done; 1 ends it. Draws as often as for steps on a
  /// terminal, and twice a minute in a file.
  void evaluation(std::int64_t steps_done, double fraction, std::int64_t evaluations_left);
  /// A permanent line, for checkpoints and events. On a terminal it replaces the drawn line.
  void note(const std::string& line);
  /// The same for the result of an evaluation, unless the last one was shown less than min_line_s ago; that
  /// of the last step always.
  void note_evaluation(std::int64_t steps_done, const std::string& line);
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
  double min_line_s_, started_s_, drawn_s_ = 0;
  double line_s_ = 0, evaluation_line_s_ = 0;  // when the last line, and the last of an evaluation was shown
  std::int64_t global_batch_ = 0;              // of the session; 0: unknown
  Pace pace_;
  double evaluation_started_s_ = 0;                   // 0: no evaluation is running
  double last_evaluation_s_ = 0, evaluations_s_ = 0;  // the latter: of all
};

}  // namespace lockstep::train
