#include "report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <set>
#include <tuple>

#include "base/files.h"
#include "base/text.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/index.h"
#include "report/document.h"

namespace lockstep::report {
namespace {

bool has_failed(const RunLog& run) { return run.ending && !run.ending->is_orderly(); }

std::string state_of(const RunLog& run) {
  if (has_failed(run)) return fmt::format("failed, exit code {}", static_cast<int>(run.ending->code));
  if (run.lines == 0) return "no steps yet";
  const std::string steps = run.config_value("train.steps");
  if (!steps.empty() && std::to_string(run.last_step) == steps) return "all steps done";
  if (!run.events.empty() && run.events.back().step == run.last_step) {
    if (run.events.back().kind == RunEvent::Kind::preempted) return "preempted";
    if (run.events.back().kind == RunEvent::Kind::stopped) return "stopped";
  }
  return "not at its end";
}

/// A start before the first checkpoint is a new one each time.
std::size_t restarts_of(const RunLog& run) {
  using Kind = RunEvent::Kind;
  const auto starts = std::ranges::count_if(run.events, [](const RunEvent& event) {
    return event.kind == Kind::started || event.kind == Kind::resumed || event.kind == Kind::forked;
  });
  return static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, starts - 1));
}

/// Smaller is better, but for these.
bool grows(const std::string& name) {
  return name.find("accuracy") != std::string::npos || name.find("r2") != std::string::npos ||
         name == "samples_per_second";
}

/// Of losses and evaluations the best, of others the median.
double summary_of(const Series& series) {
  if (series.name == "loss") return series.values.back();
  if (series.name.rfind("eval_", 0) == 0)
    return grows(series.name) ? std::ranges::max(series.values) : std::ranges::min(series.values);
  std::vector<double> values = series.values;
  const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Losses and other metrics that judge a run, and then keys of the configuration that differ.
std::string table_of(std::span<const RunLog> runs, const std::set<std::string>& different) {
  const std::vector<std::string> styles = styles_of(runs);
  std::vector<std::string> metrics;
  for (const RunLog& run : runs)
    for (const Series& series : run.series) {
      const bool shown = series.name == "loss" || series.name == "samples_per_second" ||
                         series.name == "step_ms" || series.name.rfind("eval_", 0) == 0;
      if (shown && metrics.size() < 12 && std::ranges::find(metrics, series.name) == metrics.end())
        metrics.push_back(series.name);
    }
  std::ranges::stable_sort(metrics, {}, [](const std::string& metric) {
    return metric.ends_with("loss") ? 0 : metric.starts_with("eval_") ? 1 : 2;
  });
  constexpr std::size_t most_in_sight = 16;  // rows
  std::string html = fmt::format(R"(<div class="scroll{}"><table class="sortable"><thead><tr>)",
                                 runs.size() > most_in_sight ? " tall" : "");
  html += "<th><button>run</button></th>";
  for (const std::string& metric : metrics)
    html += "<th class=\"n\"><button>" + escape_html(metric) + "</button></th>";
  for (const std::string& key : different)
    html += "<th class=\"n\"><button>" + escape_html(key) + "</button></th>";
  html += R"(<th><button>state</button></th><th class="n"><button>step</button></th>)"
          R"(<th class="n"><button>ranks</button></th><th class="n"><button>restarts</button></th>)";
  html += "</tr></thead><tbody>\n";
  const auto out = std::back_inserter(html);
  std::vector<std::size_t> order(runs.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::size_t r) { return score_of(runs[r]); });
  constexpr std::size_t most_rows = 400;
  if (order.size() > most_rows) order.resize(most_rows);
  for (const std::size_t r : order) {
    const RunLog& run = runs[r];
    fmt::format_to(out,
                   R"html(<tr data-run="{}"><td class="nowrap" data-v="{}"><span class="key" )html"
                   R"html(style="color:var(--{})"></span>{}</td>)html",
                   r, escape_html(run.name), styles[r], escape_html(run.name));
    for (const std::string& metric : metrics) {
      const Series* const series = run.find(metric);
      if (!series)
        html += "<td class=\"n\" data-v=\"\">–</td>";
      else
        fmt::format_to(out, R"(<td class="n" data-v="{:.9g}">{}</td>)", summary_of(*series),
                       number(summary_of(*series)));
    }
    for (const std::string& key : different)
      html += "<td class=\"n\">" + escape_html(cut(run.config_value(key), 100)) + "</td>";
    fmt::format_to(out,
                   R"(<td class="nowrap">{}</td><td class="n" data-v="{}">{}</td><td class="n">{}</td>)"
                   R"(<td class="n">{}</td>)",
                   state_of(run), run.last_step, whole(run.last_step),
                   run.ranks > 0 ? std::to_string(run.ranks) : "", restarts_of(run));
    html += "</tr>\n";
  }
  html += "</tbody></table></div>";
  if (order.size() < runs.size())
    html += note(fmt::format("The best {} of {} runs.", order.size(), runs.size()));
  return html +
         "<p class=\"note\">loss: of the last step; evaluations: the best; others: the median. A click on a "
         "heading sorts, on a row shows the run in the charts.</p>";
}

std::set<std::string> different_keys(std::span<const RunLog> runs) {
  std::set<std::string> keys, different;
  for (const RunLog& run : runs)
    for (const auto& [key, value] : run.config) keys.insert(key);
  for (const std::string& key : keys)
    for (const RunLog& run : runs)
      if (run.config_value(key) != runs[0].config_value(key)) different.insert(key);
  return different;
}

/// What all runs share.
std::string configuration_of(const RunLog& run, const std::set<std::string>& different) {
  std::vector<std::pair<std::string, std::string>> shared;
  for (const auto& one : run.config)
    if (different.count(one.first) == 0) shared.push_back(one);
  return configuration_html(shared);
}

std::string events_of(std::span<const RunLog> runs) {
  constexpr std::array words{"started", "resumed", "forked", "preempted", "stopped", "slow rank", "note"};
  constexpr std::size_t most = 200;
  std::string html;
  std::size_t shown = 0, all = 0;
  for (const RunLog& run : runs) {
    for (const RunEvent& event : run.events) {
      if (runs.size() > 1 && event.kind == RunEvent::Kind::started) continue;
      if (++all > most) continue;
      ++shown;
      html += "<tr>" + (runs.size() > 1 ? "<td>" + escape_html(run.name) + "</td>" : "") +
              fmt::format(R"(<td class="n">{}</td><td>{}</td><td class="v">{}</td><td>{}</td></tr>)",
                          whole(event.step), words[static_cast<std::size_t>(event.kind)],
                          escape_html(cut(event.text, 1'000)), escape_html(event.time));
    }
  }
  if (shown == 0) return "";
  return std::string("<div class=\"scroll\"><table><thead><tr>") + (runs.size() > 1 ? "<th>run</th>" : "") +
         "<th class=\"n\">step</th><th>event</th><th>details</th><th>time (UTC)</th></tr></thead><tbody>" +
         html + "</tbody></table></div>" +
         (shown < all ? fmt::format("<p class=\"note\">The first {} of {}.</p>", shown, all) : "");
}

std::string provenance_of(const RunLog& run) {
  try {
    const checkpoint::FileIndex index = checkpoint::read_index(run.path + "/checkpoints/latest");
    std::vector<std::pair<std::string, std::string>> rows{
        {"checkpoint",
         fmt::format("step {}, {} tensors, {:.1f} MiB, written {}", index.position.step, index.tensors.size(),
                     static_cast<double>(index.file_bytes) / (1 << 20), index.created)}};
    rows.insert(rows.end(), index.provenance.begin(), index.provenance.end());
    return key_table(rows);
  } catch (const Error&) {  // no checkpoint yet
    return "";
  }
}

/// What the marks on the curves mean.
std::string marks_key(std::span<const RunLog> runs) {
  using Kind = RunEvent::Kind;
  if (runs.size() > most_marked_runs) return "";
  std::string html;
  for (const auto& [kind, style, meaning] :
       {std::tuple{Kind::resumed, "resumed", "resumed"},
        std::tuple{Kind::preempted, "preempted", "preempted"},
        std::tuple{Kind::slow_rank, "slow_rank", "news of a slow rank"}}) {
    bool any = false;
    for (const RunLog& run : runs)
      any = any || std::ranges::find(run.events, kind, &RunEvent::kind) != run.events.end();
    if (any)
      html += fmt::format(R"(<li><svg viewBox="0 0 22 8"><path class="mark {}" d="M1 4h20"/></svg>{}</li>)",
                          style, meaning);
  }
  return html.empty() ? "" : "<ul class=\"legend key\">" + html + "</ul>";
}

/// How curves were made of what was logged, where they are not the same.
std::string curves_note(std::span<const RunLog> runs, std::span<const Chart> charts) {
  std::size_t logged = 0, shown = 0;
  bool pale = false;
  for (const RunLog& run : runs)
    for (const Series& series : run.series) logged = std::max(logged, series.steps.size());
  for (const Chart& chart : charts) {
    for (const Curve& curve : chart.curves) {
      shown = std::max(shown, curve.points.x.size());
      pale = pale || curve.style.find("raw") != std::string::npos;
    }
  }
  std::string note;
  if (runs.size() > most_marked_runs)
    note = "Training curves are means over a twenty-fifth of the steps, where 100 steps or more are logged. ";
  if (pale) note = "Pale: as logged; line: the mean over a twenty-fifth of the steps. ";
  if (shown < logged && runs.size() <= most_marked_runs)
    note += fmt::format(
        "Curves have at most {} of {} points: the least and the greatest of each part, and both ends.",
        whole(static_cast<std::int64_t>(shown)), whole(static_cast<std::int64_t>(logged)));
  return note.empty() ? "" : "<p class=\"note\">" + note + "</p>";
}

std::string facts_of(const RunLog& run) {
  std::vector<std::pair<std::string, std::string>> found{{"state", state_of(run)},
                                                         {"steps", whole(run.last_step)}};
  if (const Series* const loss = run.find("loss"))
    found.emplace_back("loss of the last step", number(loss->values.back()));
  for (const Series& series : run.series)
    if (series.name.rfind("eval_", 0) == 0 && series.name.rfind("eval_ema_", 0) != 0 &&
        series.name != "eval_perplexity" && series.name != "eval_accuracy_top5")
      found.emplace_back("best " + series.name, number(summary_of(series)));
  if (const Series* const speed = run.find("samples_per_second"))
    found.emplace_back("samples/s (median)", whole(std::llround(summary_of(*speed))));
  if (run.ranks > 0)
    found.emplace_back("ranks", fmt::format("{} on {}", run.ranks, pluralized(run.nodes, "node")));
  if (const std::size_t restarts = restarts_of(run); restarts > 0)
    found.emplace_back("restarts", std::to_string(restarts));
  return facts(found) + (has_failed(run) ? note(fmt::format("It failed: {}", run.ending->why)) : "");
}

/// The charts, of at most about `most_bytes`.
std::string curves_of(std::span<const RunLog> runs, std::size_t most_bytes) {
  std::vector<Chart> drawn;
  std::vector<std::string> charts;
  std::size_t bytes = 0;
  // What a point takes is estimated; twice, because a half of the points may be a half of the bytes.
  for (std::size_t budget = most_bytes, tries = 0; tries < 3; ++tries, budget = budget * most_bytes / bytes) {
    drawn = charts_of(runs, budget);
    charts.clear();
    bytes = 0;
    for (const Chart& chart : drawn) bytes += charts.emplace_back(to_html(chart)).size();
    if (bytes <= most_bytes) break;
  }
  if (charts.empty()) return "<p class=\"lead\">No step has been logged yet.</p>";
  std::string left_out;
  for (; bytes > most_bytes && !charts.empty(); charts.pop_back(), drawn.pop_back()) {
    bytes -= charts.back().size();
    left_out += (left_out.empty() ? "" : ", ") + drawn.back().title;
  }
  std::string html =
      "<p class=\"note screen\">Point for values, drag to zoom all charts, double-click to see all steps. "
      "<button id=\"reset\" hidden>All steps</button></p>" +
      curves_note(runs, drawn) + marks_key(runs) + "<div class=\"charts\">";
  for (const std::string& chart : charts) html += chart;
  html += "</div>";
  if (!left_out.empty()) html += note(cut("Left out, as the page would be too large: " + left_out, 1'000));
  return html;
}

}  // namespace

std::string page_of(std::span<const RunLog> runs) {
  const bool one = runs.size() == 1;
  const std::set<std::string> different = one ? std::set<std::string>{} : different_keys(runs);
  std::string samples, traces, provenance;
  constexpr std::size_t most_sample_bytes = 700'000, most_shown_runs = 4;
  for (const RunLog& run : runs.first(std::min(runs.size(), most_shown_runs))) {
    const std::string head = one ? "" : "<h3>" + escape_html(run.name) + "</h3>";
    const auto add = [&](std::string& all, const std::string& part) {
      if (!part.empty()) all += head + part;
    };
    add(samples, samples_html(run, most_sample_bytes / std::min(runs.size(), most_shown_runs)));
    add(provenance, provenance_of(run));
    const std::string trace = run.config_value("log.trace");
    if (!trace.empty())
      add(traces, step_trace_html(exists(trace) ? trace : run.path + "/" + file_name_of(trace)));
  }
  const std::string title = one ? runs[0].name : fmt::format("{} runs", runs.size());
  std::string lead = one ? runs[0].path : "";
  if (one && !runs[0].first_time.empty())
    lead += fmt::format(" · {} to {}", runs[0].first_time, runs[0].last_time);
  if (!one)
    lead = "Compared by the least eval_loss, or by the last loss without evaluations." +
           std::string(runs.size() > 6 ? " The best six are in colour." : "");
  std::int64_t unreadable = 0;
  for (const RunLog& run : runs) unreadable += run.unreadable_lines;
  const std::string head = one ? facts_of(runs[0]) : section("Runs", table_of(runs, different));
  std::string rest =
      section("One step", traces) + section("Samples", samples) + section("Events", events_of(runs));
  rest += section(one ? "Configuration" : "Configuration that the runs share",
                  configuration_of(runs[0], different));
  rest += section("Environment and provenance", provenance);
  std::string footer = "Written by lockstep report" +
                       (runs[0].version.empty() ? "" : " from runs of Lockstep " + runs[0].version) + ".";
  if (unreadable > 0)
    footer += fmt::format(" {} could not be read, and {} left out.", pluralized(unreadable, "line"),
                          unreadable == 1 ? "was" : "were");
  Page page{.title = title, .lead = lead, .body = head + rest, .footer = footer};
  constexpr std::size_t most_note_bytes = 4'000;
  const std::size_t other_bytes = to_html(page).size() + most_note_bytes;
  page.body =
      head +
      section("Curves", curves_of(runs, most_page_bytes - std::min(other_bytes, most_page_bytes - 1))) + rest;
  return to_html(page);
}

void write_report(std::span<const std::string> directories, const std::string& out) {
  check_page(out);
  std::vector<RunLog> runs;
  for (const std::string& directory : directories) runs.push_back(read_run(directory));
  for (RunLog& run : runs)  // the same name twice: whole paths
    if (std::ranges::count(runs, run.name, &RunLog::name) > 1) run.name = run.path;
  write_page(out, page_of(runs));
}

}  // namespace lockstep::report
