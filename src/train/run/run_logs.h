// RunLogs: the records of a run: metrics.jsonl, and the same for TensorBoard.
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
/// each reason is logged once, and records are lost until the log can be written again. It writes nothing
/// after another start of the run has taken over the directory.
class RunLogs {
 public:
  using Say = std::function<void(const std::string&)>;

  /// Removes the records that the run repeats (ResumePoint), and incomplete ones. Throws like MetricsFile and
  /// EventFile: at a start nothing is lost yet. events: also for TensorBoard. The directory must outlive it.
  RunLogs(const checkpoint::RunDirectory& run, bool events, const report::ResumePoint& point, bool writes,
          Say warn);

  /// A line of metrics.jsonl, with its "step". Its other numbers are the line's scalars in TensorBoard, under
  /// their names; those of a list or an object named NAME/INDEX or NAME/KEY.
  void append(const nlohmann::json& line);
  /// For TensorBoard only.
  void append(const report::Event& event);
  /// A line for an event: {step, time, event, note}.
  void append_event(std::int64_t step, const char* event, const std::string& note);
  /// Records, once, that lines on standard error were lost.
  void note_lost_lines(std::int64_t step);
  /// Writes another file of the run, such as a picture, completely or not at all. Creates its directory if
  /// necessary. False if it could not be written, or if this is not rank 0.
  bool write_file(const std::string& path, const std::string& bytes);
  /// Adds a picture's file to TensorBoard, unless an earlier start has done so.
  void append_missing_image(std::int64_t step, const std::string& tag, const std::string& path);
  /// A warning, logged once for each text.
  void warn_once(const std::string& text);
  /// Returns when everything is on storage, except after a logged failure.
  void sync();
  /// Throws the LostDirectory of RunDirectory::check_held() if another start has taken over the directory.
  /// Checks once a second: call it every step.
  void check_held();

  /// Counts the CPU time of this thread as time of logging, during its life. The calls above also do so.
  class Timed {
   public:
    explicit Timed(RunLogs& logs);
    ~Timed();
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;

   private:
    RunLogs& logs_;
  };
  /// Time of logging since the last call, without the current interval.
  double take_cpu_ms();

 private:
  template <class Write>
  bool attempt(const std::string& path, const Write& write);
  bool is_held(double after_s);

  std::optional<MetricsFile> metrics_;
  std::optional<report::EventFile> events_;
  const checkpoint::RunDirectory& run_;
  Say warn_;
  double looked_s_ = 0;                   // when, on the monotonic clock
  std::string lost_;                      // the error, after another start took over the directory
  std::set<std::string> logged_reasons_;  // reasons
  bool noted_lost_lines_ = false;
  int timed_ = 0;  // nested lives
  double timed_from_ms_ = 0, cpu_ms_ = 0;
};

/// "parameters/NAME" of every parameter; "gradients/NAME" of the mean gradient (sum / count) of every
/// parameter that has a gradient of the last step. Complete on rank 0, with the same bits at any number of
/// ranks; empty on other ranks. Collective if the source has a Partition: its gradients are gathered one by
/// one.
report::Event histograms_of(GradientSource& source, std::int64_t step, bool on_rank_0);

/// Writes RUN/report.html of a run that has done all its steps or failed; a preempted run has no time for it.
/// An error is a warning. On one rank.
void write_report(const std::string& run, const Log& log);

}  // namespace lockstep::train
