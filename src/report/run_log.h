// Private to the library: reads the files of a run directory, even while the run writes them.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::report {

/// One metric over the steps of a run. Steps never decrease.
struct Series {
  /// As in metrics.jsonl. An element of a list or an object: "rank_compute_ms[3]", "rank_compute_ms[max]".
  std::string name;
  std::vector<double> steps, values;
};

struct RunEvent {
  enum class Kind { started, resumed, forked, preempted, stopped, ended, slow_rank, note };
  /// The words of metrics.jsonl.
  friend constexpr auto words(Kind) {
    return std::array{"new", "resumed", "forked", "preempted", "stopped", "ended", "slow_rank", "note"};
  }
  Kind kind = Kind::note;
  std::int64_t step = 0;
  std::string time;  ///< UTC, as in the file
  std::string text;  ///< a sentence, may be empty
};

/// How the last start of a run ended, from RUN/exit.json.
struct Ending {
  ExitCode code = ExitCode::done;
  std::optional<std::int64_t> step{};  ///< completed steps; none after an error
  std::string why{};                   ///< a phrase: "preempted after step 120"
  std::string refused{};               ///< why a later start was refused; that start changed nothing

  /// Whether the run finished, or stopped as requested.
  bool is_orderly() const {
    return code == ExitCode::done || code == ExitCode::preempted || code == ExitCode::user_stopped;
  }
};
/// None if the record is missing or invalid, or the start has not ended.
std::optional<Ending> read_exit_record(const std::string& run);
std::string exit_record_path(const std::string& run);  ///< RUN/exit.json

struct RunLog {
  std::string path;
  std::string name;            ///< the last part of the path
  std::vector<Series> series;  ///< in order of appearance, without non-finite values
  std::vector<RunEvent> events;
  std::string first_time, last_time;
  Series times{
      .name = "time", .steps = {}, .values = {}};  ///< seconds since first_time, which never decrease
  double duration_s = 0;                           ///< of all starts, without the time between them
  double longest_interval_s = 0;                   ///< between two lines of one start
  std::int64_t last_step = 0;
  std::int64_t lines = 0, unreadable_lines = 0;  ///< unreadable: incomplete or invalid, and ignored
  std::int64_t ranks = 0, nodes = 0;             ///< of the last start; 0: unknown
  std::string version;
  std::optional<Ending> ending;                             ///< of the last start
  std::optional<std::set<std::string>> higher_is_better;    ///< metrics; none: the run does not say
  std::set<std::string> user_keys;                          ///< of the last start; empty: it does not say
  std::vector<std::pair<std::string, std::string>> config;  ///< of config.ini: {"train.steps", "600"}

  const Series* find(std::string_view metric) const;     ///< null if the run has no such series
  std::string config_value(std::string_view key) const;  ///< empty if config.ini lacks the key
};

/// Whether the last start failed.
bool has_failed(const RunLog& run);
/// Whether larger values of the metric are better: as the run says, for older runs by the name.
bool larger_is_better(const RunLog& run, const std::string& metric);
/// The last loss, the best value of an evaluation, or the median of another metric.
double summary_of(const RunLog& run, const Series& series);
/// Runs from the best to the worst: failed runs are last, and before them those without a value.
struct Ranking {
  std::string metric;                         ///< empty: no run has one
  std::vector<std::optional<double>> values;  ///< of each run, by summary_of()
  std::vector<std::size_t> order;             ///< indices of runs
  bool has_best = false;                      ///< the first run has a value and has not failed
};
/// By `metric`; if it is empty, by the first that a run has of checkpoint.keep_best, eval_loss and loss.
Ranking rank(std::span<const RunLog> runs, const std::string& metric = "");
/// The keys of config.ini whose values differ between the runs, without checkpoint.every if no user set it
/// (if runs do not say, if others differ): auto becomes a number by the time of a save.
std::set<std::string> different_keys(std::span<const RunLog> runs);

/// Reads RUN/metrics.jsonl, RUN/config.ini and RUN/exit.json; each may be missing. DataError if the path is
/// not a directory, or holds no file of a run.
RunLog read_run(const std::string& path);

/// Parses a line of metrics.jsonl; none if it is incomplete or lacks a "step".
std::optional<nlohmann::json> parse_metrics_line(std::string_view line);
/// The number of steps completed at a line: its step, or one less if the loss is not finite, which ends the
/// run.
std::int64_t steps_done(const nlohmann::json& line);
/// Adds lines in the format of metrics.jsonl. A last line without a line end counts if it parses.
void add_lines(RunLog& run, std::string_view text);
/// The pairs "section.key" and value of an INI file.
std::vector<std::pair<std::string, std::string>> keys_of_ini(std::string_view text);

}  // namespace lockstep::report
