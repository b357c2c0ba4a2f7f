// lockstep status: shows what runs are doing, from their files alone.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>
#include <tuple>

#include "base/clock.h"
#include "base/json.h"
#include "base/streams.h"
#include "base/text.h"
#include "cli/status.h"
#include "cli/verb.h"

namespace lockstep::cli {
namespace {

constexpr auto watch_interval = std::chrono::seconds(2);

template <class T>
nlohmann::json json_of(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

nlohmann::json to_json(const std::vector<RunRow>& rows, const std::string& metric) {
  nlohmann::json all = nlohmann::json::array();
  for (const auto& [run, status, value, differs] : rows) {
    all.push_back({{"run", run},
                   {"state", train::to_string(status.state)},
                   {"step", json_of(status.step)},
                   {"steps", json_of(status.steps)},
                   {"exit_code", json_of(status.exit_code)},
                   {"last_line_s", json_of(status.last_line_s)},
                   {"loss", json_of(status.loss)},
                   {"samples_per_second", json_of(status.samples_per_second)},
                   {"left_s", json_of(status.left_s)},
                   {"why", status.why}});
    if (!metric.empty()) all.back().update({{metric, json_of(value)}, {"differs", differs}});
  }
  return all;
}

template <class T>
std::string or_dash(const std::optional<T>& value) {
  return value ? fmt::to_string(*value) : "-";
}

std::string ago(double seconds) {
  return seconds < 60 ? fmt::format("{} s ago", std::floor(seconds)) : duration_text(seconds) + " ago";
}

}  // namespace

std::vector<RunRow> runs_at(const std::string& directory) {
  std::vector<RunRow> rows;
  if (std::optional<train::RunStatus> found = train::run_status(directory)) {
    rows.push_back({.run = directory, .status = std::move(*found)});
    return rows;
  }
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(directory, unreadable))
    if (entry.is_directory(unreadable))
      if (std::optional<train::RunStatus> found = train::run_status(entry.path()))
        rows.push_back({.run = entry.path(), .status = std::move(*found)});
  std::ranges::sort(rows, {}, [](const RunRow& row) {
    const std::string name = row.run.substr(row.run.rfind('/') + 1);
    const bool is_number = name.find_first_not_of("0123456789") == name.npos;
    return std::tuple(!is_number, is_number ? name.size() : 0, name);
  });
  return rows;
}

report::Ranking rank_by(const std::string& metric, std::vector<RunRow>& rows) {
  std::vector<report::RunLog> logs;
  for (const RunRow& row : rows) logs.push_back(has_log(row) ? report::read_run(row.run) : report::RunLog());
  const report::Ranking ranking = report::rank(logs, metric);
  std::vector<RunRow> rows_by_rank;
  for (const std::size_t r : ranking.order) {
    RunRow& row = rows_by_rank.emplace_back(std::move(rows[r]));
    row.value = ranking.values[r];
    for (const std::string& key : report::different_keys(logs))
      row.differs += fmt::format("{}{}={}", row.differs.empty() ? "" : " ", key, logs[r].config_value(key));
  }
  rows = std::move(rows_by_rank);
  return ranking;
}

std::string to_table(const std::vector<RunRow>& rows, bool figures, const std::string& metric) {
  std::vector<std::vector<std::string>> lines;
  const auto add = [&](bool wanted, std::initializer_list<std::string> cells) {
    if (wanted) lines.back().insert(lines.back().end(), cells);
  };
  const bool ranked = !metric.empty(), has_column = ranked && (metric != "loss" || !figures);
  lines.emplace_back();
  add(true, {"run", "state", "step"});
  add(has_column, {metric});
  add(figures, {"loss", "samples/s", "left"});
  add(true, {"exit", "last line"});
  add(ranked, {"differs"});
  add(true, {"why"});
  for (const auto& [run, status, value, differs] : rows) {
    lines.emplace_back();
    add(true, {on_one_line(run), train::to_string(status.state),
               or_dash(status.step) + "/" + or_dash(status.steps)});
    add(has_column, {value ? figure(*value) : "-"});
    add(figures, {status.loss ? figure(*status.loss) : "-",
                  status.samples_per_second ? fmt::format("{:.0f}", *status.samples_per_second) : "-",
                  status.left_s ? duration_text(*status.left_s) : "-"});
    add(true, {or_dash(status.exit_code), status.last_line_s ? ago(*status.last_line_s) : "-"});
    add(ranked, {on_one_line(differs)});
    add(true, {on_one_line(status.why)});
  }
  std::vector<std::size_t> widths(lines.front().size());
  for (const std::vector<std::string>& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  std::string text;
  for (const std::vector<std::string>& line : lines) {
    for (std::size_t i = 0; i + 1 < line.size(); ++i) text += fmt::format("{:<{}}  ", line[i], widths[i]);
    text += line.back() + "\n";
  }
  return text;
}

ExitCode status(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "status RUN|DIR... [--sort METRIC] [--json] [--watch]",
                    "Shows what each run, or each run in DIR, is doing, from another terminal or a\n"
                    "login node as well. Reads only files, takes no lock and writes nothing.\n\n"
                    "  training  a process holds the run: it starts, trains, evaluates or saves\n"
                    "  queued    the Slurm job of the run is in the queue again\n"
                    "  stopped   stopped by the user or preempted; the same command resumes it\n"
                    "  ended     done (exit code 0) or failed\n"
                    "  lost      its process is dead, or is on another host and silent for long\n\n"
                    "Exit codes: 0; 3 if a RUN is not a run directory and has none in it.");
  options.add()("sort", po::value<std::string>(),
                "the best run first, by a metric such as eval_loss; with loss, speed and time left");
  options.add()(
      "json",
      "print an array with one object per run: run, state, step, steps, exit_code, last_line_s, loss, "
      "samples_per_second, left_s, why; null: unknown");
  options.add()("watch", "repeat every 2 s until interrupted; with --json one array per line");
  options.positional("run", -1);
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  if (values.count("run") == 0) throw options.error("the run directory is missing");
  const bool json = values.count("json") > 0, watch = values.count("watch") > 0;
  const std::string metric = option_text(values, "sort").value_or("");
  const bool redraws = watch && !json && ::isatty(STDOUT_FILENO) != 0;
  for (;; std::this_thread::sleep_for(watch_interval)) {
    std::vector<RunRow> runs;
    std::string others;
    for (std::string run : values["run"].as<Arguments>()) {
      while (run.size() > 1 && run.ends_with('/')) run.pop_back();
      std::vector<RunRow> found = runs_at(run);
      if (found.empty()) others += (others.empty() ? "" : ", ") + quote(run);
      std::ranges::move(found, std::back_inserter(runs));
    }
    if (!metric.empty() && !runs.empty() && rank_by(metric, runs).metric.empty() && !watch)
      throw UsageError(
          "status: --sort {}: no run has this metric; metrics.jsonl has names, such as eval_loss", metric);
    if (redraws) print("\x1b[H\x1b[J");  // clears the screen
    if (json && watch) {
      print(json_text(to_json(runs, metric)) + "\n");
    } else if (json) {
      print_json(to_json(runs, metric));
    } else if (!runs.empty()) {
      print(to_table(runs, watch || !metric.empty(), metric));
    }
    flush_output();
    if (!others.empty())
      throw DataError("status: not a run directory: {}; give directories that lockstep train created",
                      others);
    if (!watch) return ExitCode::done;
  }
}

}  // namespace lockstep::cli
