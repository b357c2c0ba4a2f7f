// RunLogs: what a run records of itself: metrics.jsonl, and the same for TensorBoard.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "lockstep/autograd/gradient_sink.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/run_directory.h"
#include "lockstep/train/metrics.h"
#include "report/event_file.h"

namespace lockstep::train {

/// Only rank 0 writes; on other ranks all calls do nothing. A log that cannot be written does not end a run:
/// each reason is said once, and records are lost until the log can be written again. Nothing is written once
/// another start of the run has taken the directory over.
class RunLogs {
 public:
  using Say = std::function<void(const std::string&)>;

  /// Removes what the run repeats (ResumePoint), and incomplete records. Throws as MetricsFile and EventFile:
  /// at a start nothing is lost yet. events: for TensorBoard, too. The directory must outlive it.
  RunLogs(const checkpoint::RunDirectory& run, bool events, const report::ResumePoint& point, bool writes,
          Say warn);

  /// A line of metrics.jsonl, with its "step". Its other numbers are the line's scalars in TensorBoard, under
  /// their names; those of a list or an object named NAME/INDEX or NAME/KEY.
  void append(const nlohmann::json& line);
  /// For TensorBoard alone.
  void append(const report::Event& event);
  /// A line for what happened: {step, time, event, note}.
  void append_event(std::int64_t step, const char* event, const std::string& note);
  /// Lost lines of the log on standard error do not end a run. A line says so, once.
  void note_lost_lines(std::int64_t step);
  /// A file of the run that is no record, such as a picture: whole or not at all. Makes its directory if need
  /// be. False if it could not be written, or this is not rank 0.
  bool write_file(const std::string& path, const std::string& bytes);
  /// Shows a picture's file in TensorBoard, unless it is shown already since an earlier start.
  void append_missing_image(std::int64_t step, const std::string& tag, const std::string& path);
  /// A warning, said once for each text.
  void warn_once(const std::string& text);
  /// Everything is on storage when it returns, unless that was said to fail.
  void sync();
  /// Throws the LostDirectory of RunDirectory::check_held(), if the directory is another start's. Looks once
  /// a second: call it every step.
  void check_held();

  /// Counts the CPU time of this thread as time of logging, while it lives. The calls above do so anyway.
  class Timed {
   public:
    explicit Timed(RunLogs& logs);
    ~Timed();
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;

   private:
    RunLogs& logs_;
  };
  /// Time of logging since the last call, without what is being counted.
  double take_cpu_ms();

 private:
  template <class Write>
  bool attempt(const std::string& path, const Write& write);
  bool is_held(double after_s);

  std::optional<MetricsFile> metrics_;
  std::optional<report::EventFile> events_;
  const checkpoint::RunDirectory& run_;
  Say warn_;
  double looked_s_ = 0;         // when, on the monotonic clock
  std::string lost_;            // the error, once the directory is another start's
  std::set<std::string> said_;  // reasons
  bool noted_lost_lines_ = false;
  int timed_ = 0;  // lives that are nested
  double timed_from_ms_ = 0, cpu_ms_ = 0;
};

/// "parameters/NAME" of every parameter; "gradients/NAME" of the mean gradient (sum / count) of every one
/// that has a gradient of the step that was made last. Complete on rank 0 at any number of ranks, the same
/// bits; empty elsewhere. Collective where the source has a Partition: its gradients are gathered one by one.
report::Event histograms_of(GradientSource& source, std::int64_t step, bool on_rank_0);

/// RUN/report.html, of a run that has done all its steps or failed: one that is preempted has no time for it.
/// A report that cannot be made is a warning. On one rank.
void write_report(const std::string& run, const Log& log);

}  // namespace lockstep::train
