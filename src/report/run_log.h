// Private to the library: what the files of a run directory say, also while the run writes them.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::report {

/// One metric over the steps of a run. Steps never decrease.
struct Series {
  std::string
      name;  ///< as in metrics.jsonl; of a list or an object "rank_compute_ms[3]", "rank_compute_ms[max]"
  std::vector<double> steps, values;
};

struct RunEvent {
  enum class Kind { started, resumed, forked, preempted, stopped, slow_rank, note };
  /// The words of metrics.jsonl.
  friend constexpr auto words(Kind) {
    return std::array{"new", "resumed", "forked", "preempted", "stopped", "slow_rank", "note"};
  }
  Kind kind = Kind::note;
  std::int64_t step = 0;
  std::string time;  ///< as written, UTC
  std::string text;  ///< a sentence, may be empty
};

/// How the last start of a run ended, as RUN/exit.json has it.
struct Ending {
  ExitCode code = ExitCode::done;
  std::optional<std::int64_t> step{};  ///< steps done; none after an error
  std::string why{};                   ///< one phrase: "preempted after step 120"
  std::string refused{};               ///< why a later start was refused, which changed nothing

  /// Whether the run did what was asked of it.
  bool is_orderly() const {
    return code == ExitCode::done || code == ExitCode::preempted || code == ExitCode::user_stopped;
  }
};
/// None if there is no record that can be read, or it is open.
std::optional<Ending> read_exit_record(const std::string& run);
std::string exit_record_path(const std::string& run);  ///< where it is

struct RunLog {
  std::string path;
  std::string name;            ///< the last part of the path
  std::vector<Series> series;  ///< in the order in which they appear; without values that are not finite
  std::vector<RunEvent> events;
  std::string first_time, last_time;
  std::int64_t last_step = 0;
  std::int64_t lines = 0, unreadable_lines = 0;  ///< the latter: torn or not ours; they are left out
  std::int64_t ranks = 0, nodes = 0;             ///< of the last start; 0: not known
  std::string version;
  std::optional<Ending> ending;                             ///< of the last start
  std::vector<std::pair<std::string, std::string>> config;  ///< "train.steps", "600"; as config.ini has them

  const Series* find(std::string_view name) const;       ///< null if the run has none
  std::string config_value(std::string_view key) const;  ///< empty if it is not in config.ini
};

/// Reads RUN/metrics.jsonl, RUN/config.ini and RUN/exit.json, each of which may be missing. DataError if the
/// path is not a directory or holds nothing of a run.
RunLog read_run(const std::string& path);

/// A line of metrics.jsonl; none if it is torn or no run wrote it: one that did has a "step".
std::optional<nlohmann::json> parse_metrics_line(std::string_view line);
/// How many steps are done at such a line: its step, or one less if the loss is not finite, which ends the
/// run.
std::int64_t steps_done(const nlohmann::json& line);
/// Adds the lines of a text in the format of metrics.jsonl. A last line without its end counts if it parses.
void add_lines(RunLog& run, std::string_view text);
/// "section.key" and value of each line of an INI file.
std::vector<std::pair<std::string, std::string>> keys_of_ini(std::string_view text);

}  // namespace lockstep::report
