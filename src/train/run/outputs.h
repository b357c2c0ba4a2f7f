// The outputs of a run during training: metrics.jsonl and TensorBoard, the line of progress, the trace.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "lockstep/ddp/data_parallel.h"
#include "lockstep/ddp/timeline.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/session.h"
#include "train/config.h"
#include "train/run/interval.h"
#include "train/run/run_logs.h"
#include "train/watch/stragglers.h"

namespace lockstep::train {

/// A step that is done.
struct StepRecord {
  std::int64_t step = 0;  ///< counted from 1
  ddp::StepResult result{};
  double learning_rate = 0, gradient_norm = 0;
  double data_wait_ms = 0;
};

class Outputs {
 public:
  /// Collective: the trace begins.
  Outputs(const Config& config, Session& session, ddp::DataParallel& replicas);

  /// Opens the logs. Throws like RunLogs. Not collective.
  void open(const checkpoint::RunDirectory& run, const report::ResumePoint& point);
  /// Begins to show the progress, after this step.
  void begin(std::int64_t step);
  RunLogs& logs() { return *logs_; }
  /// A permanent line on the terminal.
  void note(const std::string& line) { progress_->note(line); }
  /// The result of an evaluation, which a log without log.every shows once a second at most.
  void note_evaluation(std::int64_t step, const std::string& line) { progress_->note_evaluation(step, line); }

  /// After each step: the progress, and news about the step.
  void add_step(const StepRecord& step, std::int64_t evaluations_left);
  /// A line of metrics of the steps since the last one.
  void add_line(const StepRecord& step);
  void add_histograms(std::int64_t step);
  /// {step, loss} for each step without a line, for a run that fails.
  void add_last_steps() { interval_.log_last_steps(replicas_.last_result(), *logs_); }
  /// Within an evaluation, when this fraction of it is done; 1 ends it.
  void evaluation(std::int64_t step, double fraction, std::int64_t evaluations_left) {
    progress_->evaluation(step, fraction, evaluations_left);
  }
  /// Work between two steps is not part of a step's time.
  void restart_interval() { interval_.restart(); }
  /// The time of a recent step; 0: unknown.
  double step_ms() const { return interval_.steps() > 0 ? interval_.step_ms() : 0; }

  /// A span of the trace, from start_s until now.
  void trace(const char* name, std::int64_t step, double start_s);
  void write_trace();

 private:
  std::optional<double> tokens_per_second(const StepRecord& step, double step_ms) const;

  const Config& config_;
  Session& session_;
  ddp::DataParallel& replicas_;
  bool speaks_;
  std::optional<RunLogs> logs_;
  std::optional<Progress> progress_;
  std::optional<ddp::Timeline> timeline_;
  Stragglers stragglers_;
  Interval interval_;
  bool noted_refused_capture_ = false, noted_refused_shards_ = false;
};

}  // namespace lockstep::train
