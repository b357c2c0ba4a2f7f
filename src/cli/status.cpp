// lockstep status: shows what runs are doing, from their files alone.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/json.h"
#include "base/streams.h"
#include "base/text.h"
#include "cli/verb.h"
#include "train/watch/run_status.h"

namespace lockstep::cli {
namespace {

constexpr auto watch_interval = std::chrono::seconds(2);

struct NamedStatus {
  std::string run;
  train::RunStatus status;
};

template <class T>
nlohmann::json json_of(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

nlohmann::json to_json(const std::vector<NamedStatus>& runs) {
  nlohmann::json all = nlohmann::json::array();
  for (const auto& [run, status] : runs) {
    all.push_back({{"run", run},
                   {"state", train::to_string(status.state)},
                   {"step", json_of(status.step)},
                   {"steps", json_of(status.steps)},
                   {"exit_code", json_of(status.exit_code)},
                   {"last_line_s", json_of(status.last_line_s)},
                   {"why", status.why}});
  }
  return all;
}

template <class T>
std::string or_dash(const std::optional<T>& value) {
  return value ? fmt::to_string(*value) : "-";
}

std::string ago(const std::optional<double>& seconds) {
  if (!seconds) return "-";
  const auto whole = static_cast<long long>(*seconds);
  return whole < 60 ? fmt::format("{} s ago", whole)
                    : fmt::format("{}:{:02d}:{:02d} ago", whole / 3600, whole / 60 % 60, whole % 60);
}

/// A table with a heading. Each column but the last is padded to its longest cell.
std::string to_table(const std::vector<NamedStatus>& runs) {
  using Row = std::array<std::string, 6>;
  std::vector<Row> rows{{"run", "state", "step", "exit", "last line", "why"}};
  for (const auto& [run, status] : runs) {
    rows.push_back({on_one_line(run), train::to_string(status.state),
                    or_dash(status.step) + "/" + or_dash(status.steps), or_dash(status.exit_code),
                    ago(status.last_line_s), on_one_line(status.why)});
  }
  std::array<std::size_t, 6> widths{};
  for (const Row& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const Row& row : rows) {
    for (std::size_t i = 0; i + 1 < row.size(); ++i) text += fmt::format("{:<{}}  ", row[i], widths[i]);
    text += row.back() + "\n";
  }
  return text;
}

}  // namespace

ExitCode status(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "status RUN... [--json] [--watch]",
                    "Shows what each run is doing, from another terminal or a login node as well. It\n"
                    "reads only the files in the run directory, takes no lock and writes nothing.\n\n"
                    "  training  a process holds the run: it starts, trains, evaluates or saves\n"
                    "  queued    the Slurm job of the run is in the queue again\n"
                    "  stopped   stopped by the user or preempted; the same command resumes it\n"
                    "  ended     done (exit code 0) or failed\n"
                    "  lost      its process is dead, or is on another host and silent for long\n\n"
                    "Exit codes: 0; 3 if a RUN is not a run directory.");
  options.add()("json",
                "print an array with one object per run: run, state, step, steps, exit_code, last_line_s, "
                "why; null: unknown");
  options.add()("watch", "repeat every 2 s until interrupted; with --json one array per line");
  options.positional("run", -1);
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  if (values.count("run") == 0) throw options.error("the run directory is missing");
  const bool json = values.count("json") > 0, watch = values.count("watch") > 0;
  const bool redraws = watch && !json && ::isatty(STDOUT_FILENO) != 0;
  for (;; std::this_thread::sleep_for(watch_interval)) {
    std::vector<NamedStatus> runs;
    std::string others;
    for (std::string run : values["run"].as<Arguments>()) {
      while (run.size() > 1 && run.ends_with('/')) run.pop_back();
      if (std::optional<train::RunStatus> found = train::run_status(run)) {
        runs.push_back({run, std::move(*found)});
      } else {
        others += (others.empty() ? "" : ", ") + quote(run);
      }
    }
    if (redraws) print("\x1b[H\x1b[J");  // clears the screen
    if (json && watch) {
      print(json_text(to_json(runs)) + "\n");
    } else if (json) {
      print_json(to_json(runs));
    } else if (!runs.empty()) {
      print(to_table(runs));
    }
    flush_output();
    if (!others.empty())
      throw DataError("status: not a run directory: {}; give directories that lockstep train created",
                      others);
    if (!watch) return ExitCode::done;
  }
}

}  // namespace lockstep::cli
