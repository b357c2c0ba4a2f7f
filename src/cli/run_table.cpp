#include "cli/run_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <tuple>

#include "base/text.h"
#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

template <class T>
std::string or_dash(const std::optional<T>& value, const char* format = "{}") {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<long long>(seconds);
  return fmt::format("{}:{:02d}:{:02d}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string ago(const std::optional<double>& seconds) {
  if (!seconds) return "-";
  return *seconds < 60 ? fmt::format("{:.0f} s ago", std::floor(*seconds)) : clock_text(*seconds) + " ago";
}

bool has_failed(const RunRow& row) {
  const int code = row.status.exit_code.value_or(0);
  return code != 0 && code != static_cast<int>(ExitCode::preempted) &&
         code != static_cast<int>(ExitCode::user_stopped);
}

}  // namespace

std::vector<RunRow> runs_at(const std::string& directory) {
  std::vector<RunRow> rows;
  if (std::optional<train::RunStatus> found = train::run_status(directory)) {
    rows.push_back({.run = directory, .status = std::move(*found)});
    return rows;
  }
  std::vector<std::string> names;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(directory, unreadable))
    if (entry.is_directory(unreadable)) names.push_back(entry.path().filename());
  std::ranges::sort(names, {}, [](const std::string& name) {
    const bool is_number =
        std::ranges::all_of(name, [](char letter) { return letter >= '0' && letter <= '9'; });
    return std::tuple(!is_number, is_number ? name.size() : 0, name);
  });
  for (const std::string& name : names)
    if (std::optional<train::RunStatus> found = train::run_status(directory + "/" + name))
      rows.push_back({.run = directory + "/" + name, .status = std::move(*found)});
  return rows;
}

void rank_by(const std::string& metric, std::vector<RunRow>& rows) {
  std::vector<report::RunLog> logs, configured;
  for (const RunRow& row : rows) {
    try {
      logs.push_back(report::read_run(row.run));
    } catch (const DataError&) {  // a start that has only its lock yet
      logs.emplace_back();
    }
    if (!logs.back().config.empty()) configured.push_back(logs.back());
  }
  const std::set<std::string> keys = report::different_keys(configured);
  std::set<std::string> known;
  bool larger = false;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    rows[r].differs.clear();
    for (const report::Series& series : logs[r].series) known.insert(series.name);
    if (const report::Series* const series = logs[r].find(metric)) {
      rows[r].value = report::summary_of(logs[r], *series);
      larger = report::larger_is_better(logs[r], metric);
    }
    for (const std::string& key : logs[r].config.empty() ? std::set<std::string>{} : keys)
      rows[r].differs +=
          fmt::format("{}{}={}", rows[r].differs.empty() ? "" : " ", key, logs[r].config_value(key));
  }
  if (!known.contains(metric))
    throw UsageError("{}: no run has this metric; one of {}", quote(metric), fmt::join(known, ", "));
  std::ranges::stable_sort(rows, {}, [larger](const RunRow& row) {
    return std::tuple(has_failed(row), !row.value, row.value ? (larger ? -*row.value : *row.value) : 0);
  });
}

std::string to_table(const std::vector<RunRow>& rows, bool figures, const std::string& metric) {
  std::vector<std::vector<std::string>> lines{{"run", "state", "step"}};
  const auto add = [&](std::vector<std::string> cells) {
    lines.back().insert(lines.back().end(), cells.begin(), cells.end());
  };
  if (!metric.empty()) add({metric});
  if (figures) add({"loss", "samples/s", "left"});
  add({"exit", "last line"});
  if (!metric.empty()) add({"differs"});
  add({"why"});
  for (const auto& [run, status, value, differs] : rows) {
    lines.push_back({on_one_line(run), train::to_string(status.state),
                     or_dash(status.step) + "/" + or_dash(status.steps)});
    if (!metric.empty()) add({value ? figure(*value) : "-"});
    if (figures)
      add({status.loss ? figure(*status.loss) : "-", or_dash(status.samples_per_second, "{:.0f}"),
           status.left_s ? clock_text(*status.left_s) : "-"});
    add({or_dash(status.exit_code), ago(status.last_line_s)});
    if (!metric.empty()) add({differs.empty() ? "-" : on_one_line(differs)});
    add({on_one_line(status.why)});
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

}  // namespace lockstep::cli
