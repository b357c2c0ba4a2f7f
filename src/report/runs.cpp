// The document of runs: facts, a table, events, samples and configuration.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <set>

#include "base/clock.h"
#include "base/files.h"
#include "base/text.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/convert.h"
#include "lockstep/checkpoint/index.h"
#include "report/page.h"
#include "report/report.h"

namespace lockstep::report {
namespace {

std::string state_of(const RunLog& run) {
  if (has_failed(run)) return fmt::format("failed, exit code {}", static_cast<int>(run.ending->code));
  if (run.lines == 0) return "no steps yet";
  const std::string steps = run.config_value("train.steps");
  if (!steps.empty() && std::to_string(run.last_step) == steps) return "all steps done";
  const auto ended = [&](const RunEvent& event) {
    return event.kind == RunEvent::Kind::ended && event.step == run.last_step;
  };
  if (std::ranges::any_of(run.events, ended)) return "ended early";
  if (!run.events.empty() && run.events.back().step == run.last_step) {
    if (run.events.back().kind == RunEvent::Kind::preempted) return "preempted";
    if (run.events.back().kind == RunEvent::Kind::stopped) return "stopped";
  }
  return "not finished";
}

/// The number of starts after the first. A start before the first checkpoint counts as well.
std::size_t restarts_of(const RunLog& run) {
  using Kind = RunEvent::Kind;
  const auto starts = std::ranges::count_if(run.events, [](const RunEvent& event) {
    return event.kind == Kind::started || event.kind == Kind::resumed || event.kind == Kind::forked;
  });
  return static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, starts - 1));
}

bool is_of_class(const std::string& metric) { return metric.find("accuracy_class_") != metric.npos; }

/// The table of runs: the metrics that judge a run, then the keys that differ between runs.
json table_of(std::span<const RunLog> runs, const std::set<std::string>& different) {
  std::vector<std::string> metrics;
  for (const RunLog& run : runs)
    for (const Series& series : run.series) {
      const bool has_column = series.name == "loss" || series.name == "samples_per_second" ||
                              series.name == "step_ms" || series.name.rfind("eval_", 0) == 0;
      if (has_column && !is_of_class(series.name) && metrics.size() < 12 &&
          std::ranges::find(metrics, series.name) == metrics.end())
        metrics.push_back(series.name);
    }
  std::ranges::stable_sort(metrics, {}, [](const std::string& metric) {
    return metric.ends_with("loss") ? 0 : metric.starts_with("eval_") ? 1 : 2;
  });
  json columns = json::array({"run"}), rows = json::array(), keys = json::array();
  for (const std::string& metric : metrics) columns.push_back(metric);
  for (const std::string& key : different) columns.push_back(key);
  for (const char* const column : {"state", "step", "ranks", "restarts"}) columns.push_back(column);
  const Ranking ranking = rank(runs);
  std::vector<std::size_t> order = ranking.order;
  constexpr std::size_t max_rows = 400;
  if (order.size() > max_rows) order.resize(max_rows);
  const std::vector<std::string> styles = styles_of(runs);
  for (const std::size_t r : order) {
    const RunLog& run = runs[r];
    const bool is_best = ranking.has_best && r == order[0];
    json row = json::array({run.name + (is_best ? " (best)" : "")});
    for (const std::string& metric : metrics) {
      const Series* const series = run.find(metric);
      row.push_back(series ? json(summary_of(run, *series)) : json());
    }
    for (const std::string& key : different) row.push_back(cut(run.config_value(key), 100));
    const std::string state = state_of(run) + (has_failed(run) ? ": " + cut(run.ending->why, 200) : "");
    for (const json& cell :
         {json(state), json(run.last_step), run.ranks > 0 ? json(run.ranks) : json(), json(restarts_of(run))})
      row.push_back(cell);
    rows.push_back(std::move(row));
    keys.push_back({{"run", r}, {"style", styles[r]}});
  }
  json part = table(std::move(columns), std::move(rows));
  part["table"]["runs"] = std::move(keys);
  part["table"]["note"] =
      (order.size() < runs.size() ? fmt::format("Shows the best {} of {} runs. ", order.size(), runs.size())
                                  : "") +
      "loss: last step; evaluations: best; other metrics: median. Click on a heading to sort, on a row to "
      "highlight the run in the charts.";
  return part;
}

std::vector<json> events_of(std::span<const RunLog> runs) {
  constexpr std::array words{"started", "resumed",     "forked",    "preempted",
                             "stopped", "ended early", "slow rank", "note"};
  constexpr std::size_t max_events = 200;
  json columns{"step", "event", "details", "time (UTC)"}, rows = json::array();
  if (runs.size() > 1) columns.insert(columns.begin(), "run");
  std::size_t all = 0;
  for (const RunLog& run : runs) {
    for (const RunEvent& event : run.events) {
      if (runs.size() > 1 && event.kind == RunEvent::Kind::started) continue;
      if (++all > max_events) continue;
      json row{event.step, words[static_cast<std::size_t>(event.kind)], cut(event.text, 1'000), event.time};
      if (runs.size() > 1) row.insert(row.begin(), run.name);
      rows.push_back(std::move(row));
    }
  }
  if (rows.empty()) return {};
  return {table(std::move(columns), std::move(rows)),
          note(all > max_events ? fmt::format("Shows the first {} of {} events.", max_events, all) : "")};
}

std::optional<checkpoint::FileIndex> newest_checkpoint(const RunLog& run) {
  try {
    return checkpoint::read_index(run.path + "/checkpoints/latest");
  } catch (const Error&) {  // no checkpoint yet
    return std::nullopt;
  }
}

json provenance_of(const std::optional<checkpoint::FileIndex>& index) {
  if (!index) return {};
  Pairs rows{{"checkpoint", fmt::format("step {}, {} tensors, {:.1f} MiB, written {}", index->position.step,
                                        index->tensors.size(),
                                        static_cast<double>(index->file_bytes) / (1 << 20), index->created)}};
  rows.insert(rows.end(), index->provenance.begin(), index->provenance.end());
  return key_table(rows);
}

/// Elements of the model's tensors, without the running statistics of batch norms.
std::int64_t parameters_of(const checkpoint::FileIndex& index) {
  std::int64_t count = 0;
  for (const checkpoint::TensorEntry& tensor : index.tensors)
    if (tensor.group == "model" && !checkpoint::is_running_statistic(tensor.name))
      count += tensor.shape.numel();
  return count;
}

Pairs facts_of(const RunLog& run, const std::optional<checkpoint::FileIndex>& saved) {
  Pairs facts{{"state", state_of(run)}, {"steps", whole(run.last_step)}};
  if (!run.times.values.empty()) facts.emplace_back("duration", duration_text(run.duration_s));
  if (const Series* const loss = run.find("loss"))
    facts.emplace_back("last loss", number(loss->values.back()));
  for (const Series& series : run.series)
    if (series.name.rfind("eval_", 0) == 0 && series.name.rfind("eval_ema_", 0) != 0 &&
        series.name != "eval_perplexity" && series.name != "eval_accuracy_top5" && !is_of_class(series.name))
      facts.emplace_back("best " + series.name, number(summary_of(run, series)));
  if (const Series* const speed = run.find("samples_per_second"))
    facts.emplace_back("samples/s (median)", whole(std::llround(summary_of(run, *speed))));
  if (run.ranks > 0)
    facts.emplace_back("ranks", fmt::format("{} on {}", run.ranks, pluralized(run.nodes, "node")));
  if (const std::size_t restarts = restarts_of(run); restarts > 0)
    facts.emplace_back("restarts", std::to_string(restarts));
  if (saved) facts.emplace_back("parameters", whole(parameters_of(*saved)));
  if (const std::string data = run.config_value("data.train"); !data.empty()) {
    const auto known = saved ? saved->provenance : checkpoint::Provenance{};
    const auto samples = known.find("train_samples");
    facts.emplace_back("data",
                       cut(data, 60) + (samples == known.end() ? "" : ", " + samples->second + " samples"));
  }
  return facts;
}

/// Title, lead, facts and footer.
json head_of(std::span<const RunLog> runs, const std::optional<checkpoint::FileIndex>& saved) {
  std::int64_t unreadable = 0;
  for (const RunLog& run : runs) unreadable += run.unreadable_lines;
  std::string footer = "Written by lockstep report" +
                       (runs[0].version.empty() ? "" : " from runs of Lockstep " + runs[0].version) + ".";
  if (unreadable > 0)
    footer += fmt::format(" Without {} that cannot be read.", pluralized(unreadable, "line"));
  if (runs.size() > 1) {
    const Ranking ranking = rank(runs);
    std::string lead = ranking.metric.empty() ? "" : fmt::format("Ordered by {}.", ranking.metric);
    if (ranking.has_best)
      lead = fmt::format("Best: {}, {} {}. {}", runs[ranking.order[0]].name, ranking.metric,
                         number(*ranking.values[ranking.order[0]]), lead);
    if (runs.size() > 6) lead += " The first six are in colour.";
    return {{"title", fmt::format("{} runs", runs.size())}, {"lead", lead}, {"footer", footer}};
  }
  const RunLog& run = runs[0];
  return {
      {"title", run.name},
      {"lead",
       run.path + (run.first_time.empty() ? "" : fmt::format(" · {} to {}", run.first_time, run.last_time))},
      {"facts", facts_of(run, saved)},
      {"failure", has_failed(run) ? "The run failed: " + run.ending->why : ""},
      {"footer", footer}};
}

}  // namespace

std::vector<std::string> labels_of(std::span<const RunLog> runs) {
  constexpr std::size_t max_keys = 3, max_value = 40;
  std::vector<std::string> names, labels;
  const std::set<std::string> different = different_keys(runs);
  for (const RunLog& run : runs) {
    names.push_back(run.name);
    std::string& label = labels.emplace_back();
    for (const std::string& key : different)
      label += fmt::format("{}{} {}", label.empty() ? "" : ", ", key.substr(key.find('.') + 1),
                           cut(run.config_value(key), max_value));
  }
  const bool tells_apart = std::set<std::string>(labels.begin(), labels.end()).size() == runs.size();
  return different.empty() || different.size() > max_keys || !tells_apart ? names : labels;
}

json document_of(std::span<const RunLog> runs) {
  const bool one = runs.size() == 1;
  const auto saved = one ? newest_checkpoint(runs[0]) : std::nullopt;
  const std::set<std::string> different = one ? std::set<std::string>{} : different_keys(runs);
  std::vector<json> samples, traces, provenance;
  constexpr std::size_t max_sample_bytes = 700'000, max_detailed_runs = 4;
  const std::span<const RunLog> detailed = runs.first(std::min(runs.size(), max_detailed_runs));
  for (const RunLog& run : detailed) {
    const auto add = [&](std::vector<json>& all, const std::vector<json>& parts) {
      if (parts.empty() || parts[0].is_null()) return;
      if (!one) all.push_back({{"heading", run.name}});
      all.insert(all.end(), parts.begin(), parts.end());
    };
    add(samples, samples_of(run, max_sample_bytes / detailed.size()));
    add(provenance, {provenance_of(one ? saved : newest_checkpoint(run))});
    const std::string trace = run.config_value("log.trace");
    if (!trace.empty())
      add(traces, {step_trace_of(exists(trace) ? trace : run.path + "/" + file_name_of(trace))});
  }
  const RunLog& configured = runs[rank(runs).order[0]];  // a refused run has no configuration
  const std::set<std::string>& user_keys = configured.user_keys;
  Pairs own, initial;  // shared keys: those that the user set, and the others
  for (const auto& [key, value] : configured.config)
    if (!different.contains(key))
      (user_keys.empty() || user_keys.contains(key) ? own : initial).emplace_back(key, value);
  json document = head_of(runs, saved);
  document["sections"] = {
      one ? json() : section("Runs", {table_of(runs, different)}),
      json(),
      section("One step", traces),
      section("Samples", samples),
      section("Events", events_of(runs)),
      section(
          one ? "Configuration" : "Configuration shared by the runs",
          {configuration(own), initial.empty() ? json() : json{{"heading", "Keys with their default values"}},
           configuration(initial)}),
      section("Environment and provenance", provenance)};
  // Curves get the remaining bytes.
  constexpr std::size_t max_note_bytes = 4'000;
  const std::size_t others = to_html(document).size() + max_note_bytes;
  document["sections"][1] =
      section("Curves", curves_of(runs, max_page_bytes - std::min(others, max_page_bytes - 1)));
  return document;
}

bool is_result(const std::string& path) {
  return path.ends_with(".json") && !std::filesystem::is_directory(path);
}

void write_report(std::span<const std::string> paths, const std::string& out) {
  check_page(out);
  std::vector<Result> results, evaluations;
  std::vector<RunLog> runs;
  for (const std::string& path : paths) {
    if (!is_result(path)) {
      runs.push_back(read_run(path));
      continue;
    }
    const Result result{path, json::parse(read_text(path), nullptr, false)};
    (is_evaluation(result) ? evaluations : results).push_back(result);
  }
  if (!results.empty() && !runs.empty())
    throw UsageError("report: {}: is a run; give runs or results of lockstep bench, not both", runs[0].path);
  if (!results.empty() && !evaluations.empty())
    throw UsageError(
        "report: {}: is a result of lockstep eval; give it with runs, not with results of lockstep bench",
        evaluations[0].file);
  if (!results.empty()) return write_page(out, document_of(results));
  for (RunLog& run : runs)  // equal names: full paths
    if (std::ranges::count(runs, run.name, &RunLog::name) > 1) run.name = run.path;
  json document = runs.empty() ? json{{"title", "Evaluation"},
                                      {"sections", json::array()},
                                      {"footer", "Written by lockstep report."}}
                               : document_of(runs);
  json& sections = document["sections"];
  if (!evaluations.empty())
    sections.insert(sections.empty() ? sections.end() : sections.begin() + 1,
                    section("Evaluation", evaluations_of(evaluations)));
  write_page(out, document);
}

}  // namespace lockstep::report
