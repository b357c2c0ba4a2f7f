#include "report/run_log.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>
#include <unordered_map>

#include "base/clock.h"
#include "base/files.h"
#include "base/text.h"
#include "lockstep/base/error.h"
#include "lockstep/base/option.h"

namespace lockstep::report {
namespace {

using nlohmann::json;

std::string text_of(const json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>() : "";
}

std::int64_t integer_of(const json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

RunEvent::Kind kind_of(std::string_view word) {
  constexpr auto all = words(RunEvent::Kind{});
  const auto found = std::find(all.begin(), all.end(), word);
  return found == all.end() ? RunEvent::Kind::note : static_cast<RunEvent::Kind>(found - all.begin());
}

/// "3 ranks on 1 node; optimizer.lr = 0.1 (was 0.2)"
std::string text_of_start(const json& line) {
  std::string text;
  if (const std::int64_t ranks = integer_of(line, "ranks"); ranks > 0)
    text = std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
  if (const std::string from = text_of(line, "forked_from"); !from.empty()) text += "; from " + from;
  const auto changes = line.find("changes");
  if (changes == line.end() || !changes->is_object()) return text;
  for (const auto& [key, change] : changes->items())
    if (change.is_object())
      text += "; " + key + " = " + text_of(change, "to") + " (was " + text_of(change, "from") + ")";
  return text;
}

/// Adds lines to a RunLog. Finds the series of a name by a map.
class Adder {
 public:
  explicit Adder(RunLog& run) : run_(run) {
    for (std::size_t s = 0; s < run.series.size(); ++s) places_[run.series[s].name] = s;
  }

  void line(const json& line) {
    const std::int64_t step = line["step"].get<std::int64_t>();
    const std::string time = text_of(line, "time");
    if (!time.empty()) {
      if (run_.first_time.empty()) run_.first_time = time;
      run_.last_time = time;
      add_time(static_cast<double>(step), time, line.contains("start"));
    }
    run_.last_step = std::max(run_.last_step, steps_done(line));
    if (line.contains("start")) {
      run_.events.push_back({kind_of(text_of(line, "start")), step, time, text_of_start(line)});
      run_.ranks = integer_of(line, "ranks");
      run_.nodes = integer_of(line, "nodes");
      if (const std::string version = text_of(line, "version"); !version.empty()) run_.version = version;
      if (const auto higher = line.find("higher_is_better"); higher != line.end() && higher->is_array()) {
        std::set<std::string>& metrics = run_.higher_is_better.emplace();
        for (const json& metric : *higher)
          if (metric.is_string()) metrics.insert(metric.get<std::string>());
      }
      run_.user_keys.clear();
      if (const auto settings = line.find("settings"); settings != line.end() && settings->is_object())
        for (const auto& [key, value] : settings->items()) run_.user_keys.insert(key);
    } else if (line.contains("event") || line.contains("note")) {
      run_.events.push_back({kind_of(text_of(line, "event")), step, time, text_of(line, "note")});
    } else {
      numbers(line, static_cast<double>(step));
    }
  }

 private:
  void add_time(double step, const std::string& time, bool starts) {
    const auto now = unix_time_of(time);
    if (!now) return;
    Series& times = run_.times;
    if (!first_) first_ = *now;
    const double before_s = times.values.empty() ? 0 : times.values.back();
    const double now_s = std::max(static_cast<double>(*now - *first_), before_s);
    const double interval_s = starts ? 0 : now_s - before_s;
    run_.duration_s += interval_s;
    run_.longest_interval_s = std::max(run_.longest_interval_s, interval_s);
    times.steps.push_back(step);
    times.values.push_back(now_s);
  }

  void numbers(const json& line, double step) {
    for (const auto& [key, value] : line.items()) {
      if (key == "step") continue;
      if (key == "loss" && value.is_null())
        run_.events.push_back({RunEvent::Kind::note, static_cast<std::int64_t>(step), text_of(line, "time"),
                               "the loss is not finite"});
      if (value.is_number()) add(key, step, value.get<double>());
      if (!value.is_structured()) continue;
      for (const auto& [part, element] : value.items())
        if (element.is_number()) add(key + "[" + part + "]", step, element.get<double>());
    }
  }

  void add(const std::string& name, double step, double value) {
    if (!std::isfinite(value)) return;
    const auto [place, is_new] = places_.try_emplace(name, run_.series.size());
    if (is_new) run_.series.push_back({.name = name, .steps = {}, .values = {}});
    Series& series = run_.series[place->second];
    series.steps.push_back(step);
    series.values.push_back(value);
  }

  RunLog& run_;
  std::optional<std::time_t> first_;
  std::unordered_map<std::string, std::size_t> places_;
};

}  // namespace

const Series* RunLog::find(std::string_view metric) const {
  const auto found = std::ranges::find(series, metric, &Series::name);
  return found == series.end() ? nullptr : &*found;
}

std::string RunLog::config_value(std::string_view key) const {
  for (const auto& [name_of_key, value] : config)
    if (name_of_key == key) return value;
  return {};
}

bool has_failed(const RunLog& run) { return run.ending && !run.ending->is_orderly(); }

bool larger_is_better(const RunLog& run, const std::string& metric) {
  if (!metric.starts_with("eval_")) return metric.ends_with("_per_second");
  if (run.higher_is_better) return run.higher_is_better->contains(metric);
  return metric.find("accuracy") != std::string::npos || metric.find("r2") != std::string::npos;
}

double summary_of(const RunLog& run, const Series& series) {
  if (series.name == "loss") return series.values.back();
  if (series.name.starts_with("eval_"))
    return larger_is_better(run, series.name) ? std::ranges::max(series.values)
                                              : std::ranges::min(series.values);
  return median(series.values);
}

Ranking rank(std::span<const RunLog> runs, const std::string& metric) {
  Ranking ranking{.metric = "", .values = {}, .order = std::vector<std::size_t>(runs.size())};
  ranking.values.resize(runs.size());
  std::iota(ranking.order.begin(), ranking.order.end(), 0);
  std::vector<std::string> metrics{metric};
  if (metric.empty()) metrics = {"", "eval_loss", "loss"};
  for (const RunLog& run : runs)
    if (metrics[0].empty()) metrics[0] = run.config_value("checkpoint.keep_best");
  for (const std::string& one : metrics) {
    bool larger = false;
    for (std::size_t r = 0; r < runs.size(); ++r) {
      const Series* const series = runs[r].find(one);
      if (!series) continue;
      ranking.metric = one;
      ranking.values[r] = summary_of(runs[r], *series);
      larger = larger_is_better(runs[r], one);
    }
    if (ranking.metric.empty()) continue;
    std::ranges::stable_sort(ranking.order, {}, [&](std::size_t r) {
      const std::optional<double>& value = ranking.values[r];
      return std::tuple(has_failed(runs[r]), !value, (larger ? -1 : 1) * value.value_or(0));
    });
    ranking.has_best = ranking.values[ranking.order[0]] && !has_failed(runs[ranking.order[0]]);
    break;
  }
  return ranking;
}

std::set<std::string> different_keys(std::span<const RunLog> runs) {
  std::set<std::string> keys, different;
  const RunLog* first = nullptr;
  for (const RunLog& run : runs)
    for (const auto& [key, value] : run.config) keys.insert(key);
  for (const RunLog& run : runs) {
    if (run.config.empty()) continue;
    if (!first) first = &run;
    for (const std::string& key : keys)
      if (run.config_value(key) != first->config_value(key)) different.insert(key);
  }
  const auto is_set = [&](const RunLog& run) {
    return run.user_keys.empty() ? different.size() == 1 : run.user_keys.contains("checkpoint.every");
  };
  if (std::ranges::none_of(runs, is_set)) different.erase("checkpoint.every");
  return different;
}

std::string exit_record_path(const std::string& run) { return run + "/exit.json"; }

std::optional<Ending> read_exit_record(const std::string& run) {
  try {
    const json record = json::parse(read_text(exit_record_path(run)));
    Ending ending{.code = static_cast<ExitCode>(record.at("exit_code").get<int>()),
                  .why = record.at("why").get<std::string>()};
    if (record.at("step").is_number_integer()) ending.step = record["step"].get<std::int64_t>();
    ending.refused = record.value("refused", "");
    return ending;
  } catch (const std::exception&) {  // the file is missing, open or damaged
    return std::nullopt;
  }
}

std::int64_t steps_done(const json& line) {
  const auto loss = line.find("loss");
  const bool failed = loss != line.end() && loss->is_null();
  return line["step"].get<std::int64_t>() - failed;
}

std::optional<json> parse_metrics_line(std::string_view line) {
  json parsed = json::parse(line, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("step") || !parsed["step"].is_number_integer())
    return std::nullopt;
  return parsed;
}

void add_lines(RunLog& run, std::string_view text) {
  Adder adder(run);
  for (const std::string_view line : lines_of(text)) {
    if (without_blanks(line).empty()) continue;
    const std::optional<json> parsed = parse_metrics_line(line);
    ++(parsed ? run.lines : run.unreadable_lines);
    if (parsed) adder.line(*parsed);
  }
}

std::vector<std::pair<std::string, std::string>> keys_of_ini(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> keys;
  for (const IniLine& line : ini_lines(text))
    if (line.kind == IniLine::Kind::key) keys.emplace_back(line.name(), line.value);
  return keys;
}

RunLog read_run(const std::string& path) {
  if (!std::filesystem::is_directory(path)) throw DataError("{}: is not a run directory", path);
  RunLog run;
  run.path = path;
  std::filesystem::path absolute = std::filesystem::absolute(path).lexically_normal();
  if (!absolute.has_filename()) absolute = absolute.parent_path();
  run.name = absolute.filename();
  const std::string metrics = path + "/metrics.jsonl", config = path + "/config.ini";
  if (!exists(metrics) && !exists(config) && !exists(path + "/checkpoints") &&
      !exists(exit_record_path(path)))
    throw DataError(
        "{}: is not a run directory: it has no metrics.jsonl, config.ini or checkpoints (lockstep status {} "
        "--sort METRIC compares the runs of a sweep)",
        path, shell_quoted(path));
  if (exists(metrics)) add_lines(run, read_text(metrics, UINT64_MAX));
  run.ending = read_exit_record(path);
  if (exists(config)) run.config = keys_of_ini(read_text(config));
  return run;
}

}  // namespace lockstep::report
