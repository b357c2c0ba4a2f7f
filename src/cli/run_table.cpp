#include "cli/run_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <tuple>

#include "base/text.h"
#include "report/run_log.h"

namespace lockstep::cli {
namespace {

template <class T>
std::string or_dash(const std::optional<T>& value) {
  return value ? fmt::to_string(*value) : "-";
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<long long>(seconds);
  return fmt::format("{}:{:02d}:{:02d}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string ago(double seconds) {
  return seconds < 60 ? fmt::format("{} s ago", std::floor(seconds)) : clock_text(seconds) + " ago";
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

std::string rank_by(std::initializer_list<std::string> metrics, std::vector<RunRow>& rows) {
  std::vector<report::RunLog> logs;
  for (const RunRow& row : rows)  // a start may have only its lock yet
    logs.push_back(row.status.steps ? report::read_run(row.run) : report::RunLog());
  const std::set<std::string> keys = report::different_keys(logs);
  for (const std::string& metric : metrics) {
    bool larger = false, known = false;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      RunRow& row = rows[r];
      row.differs.clear();
      for (const std::string& key : keys)
        row.differs += fmt::format("{}{}={}", row.differs.empty() ? "" : " ", key, logs[r].config_value(key));
      const report::Series* const series = logs[r].find(metric);
      if (!series) continue;
      row.value = report::summary_of(logs[r], *series);
      larger = report::larger_is_better(logs[r], metric);
      known = true;
    }
    if (!known) continue;
    std::ranges::stable_sort(rows, {}, [larger](const RunRow& row) {
      const int code = row.status.exit_code.value_or(0);
      const bool failed = code != 0 && code != 75 && code != 76;
      return std::tuple(failed, !row.value, (larger ? -1 : 1) * row.value.value_or(0));
    });
    return metric;
  }
  return "";
}

std::string to_table(const std::vector<RunRow>& rows, bool figures, const std::string& metric) {
  std::vector<std::vector<std::string>> lines;
  const auto add = [&](bool wanted, std::initializer_list<std::string> cells) {
    if (wanted) lines.back().insert(lines.back().end(), cells);
  };
  const bool ranked = !metric.empty();
  lines.emplace_back();
  add(true, {"run", "state", "step"});
  add(ranked, {metric});
  add(figures, {"loss", "samples/s", "left"});
  add(true, {"exit", "last line"});
  add(ranked, {"differs"});
  add(true, {"why"});
  for (const auto& [run, status, value, differs] : rows) {
    lines.emplace_back();
    add(true, {on_one_line(run), train::to_string(status.state),
               or_dash(status.step) + "/" + or_dash(status.steps)});
    add(ranked, {value ? figure(*value) : "-"});
    add(figures, {status.loss ? figure(*status.loss) : "-",
                  status.samples_per_second ? fmt::format("{:.0f}", *status.samples_per_second) : "-",
                  status.left_s ? clock_text(*status.left_s) : "-"});
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

}  // namespace lockstep::cli
