// The charts of runs: one for each metric. A metric of an evaluation has one chart for all weights.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "base/clock.h"
#include "base/json.h"
#include "lockstep/base/option.h"
#include "report/report.h"

namespace lockstep::report {
namespace {

struct Known {
  std::string_view name, title, unit;
};
constexpr std::array known{
    // in the order on the page
    Known{"loss", "Training loss", ""},
    Known{"lr", "Learning rate", ""},
    Known{"grad_norm", "Gradient norm", ""},
    Known{"samples_per_second", "Throughput", "samples/s"},
    Known{"step_ms", "Step time", "ms"},
    Known{"data_wait_ms", "Data wait", "ms per step"},
    Known{"exposed_comm_ms", "Exposed communication", "ms per step"},
    Known{"log_ms", "Logging", "ms of CPU time per step"},
    Known{"memory_mib", "Peak memory of rank 0", "MiB"},
    Known{"gpu_memory_mib", "GPU memory of rank 0", "MiB"},
    Known{"rank_compute_ms", "Computation per rank", "ms per step"},
    Known{"slowest_rank", "Slowest rank", "rank"},
};
constexpr std::size_t max_coloured = 6;  // runs; more colours would look alike
constexpr std::size_t max_with_raw = 3;  // runs with raw curves; with more runs only the means are legible
constexpr std::size_t max_coloured_parts = 8;
constexpr std::size_t smooth_from = 100;  // points
constexpr std::size_t smooth_points = 400;

/// "eval_ema_0.99_loss" -> "loss", "EMA 0.99", if eval_loss exists as well.
struct EvaluationName {
  std::string metric, weights;
};

EvaluationName parse(const std::string& name, std::span<const RunLog> runs) {
  constexpr std::string_view plain = "eval_", ema = "eval_ema_";
  if (name.rfind(ema, 0) != 0) return {name.substr(plain.size()), "model"};
  for (std::size_t at = name.find('_', ema.size()); at != std::string::npos; at = name.find('_', at + 1)) {
    const std::string metric = name.substr(at + 1);
    if (std::ranges::any_of(runs, [&](const RunLog& run) { return run.find("eval_" + metric); }))
      return {metric, "EMA " + name.substr(ema.size(), at - ema.size())};
  }
  return {name.substr(plain.size()), "model"};
}

bool is_of_evaluation(const std::string& name) { return name.starts_with("eval_"); }

/// Metrics of one class are curves of one chart.
constexpr std::string_view class_metric = "accuracy_class_";

/// The key of a metric's chart; metrics with equal keys share a chart.
std::string chart_key(const std::string& name, std::span<const RunLog> runs) {
  if (is_of_evaluation(name)) {
    const auto [metric, weights] = parse(name, runs);
    if (metric == "loss" && runs.size() <= max_with_raw) return metric;  // whether it learns by heart
    if (metric.starts_with(class_metric)) return "eval accuracy by class";
    return runs.size() > 4 && weights != "model" ? "eval " + metric + ", " + weights : "eval " + metric;
  }
  return name.substr(0, name.find('['));
}

/// "rank_compute_ms[3]" -> "rank 3", "rank_compute_ms[max]" -> "max"; empty for a scalar.
std::string part_of(const std::string& name) {
  if (const std::size_t at = name.find(class_metric); at != std::string::npos)
    return "class " + name.substr(at + class_metric.size());
  const std::size_t bracket = name.find('[');
  if (bracket == std::string::npos) return "";
  const std::string part = name.substr(bracket + 1, name.size() - bracket - 2);
  const bool is_rank = name.starts_with("rank_") && part.find_first_not_of("0123456789") == std::string::npos;
  return is_rank ? "rank " + part : part;
}

double median_of(const Series* series) { return median(series->values); }

json titled(const std::string& key) {
  json chart{{"title", key}};
  if (key.rfind("eval ", 0) == 0) chart["title"] = "Evaluation: " + key.substr(5);
  for (const Known& row : known)
    if (row.name == key) chart["title"] = row.title, chart["unit"] = row.unit;
  return chart;
}

/// The events that every chart marks: at most max_marks, at equal distances in their order.
json marks_of(std::span<const RunLog> runs, std::size_t max_marks) {
  std::vector<json> marks;
  if (runs.size() > max_marked_runs) return marks;
  for (const RunLog& run : runs) {
    const std::ptrdiff_t number = &run - runs.data();
    for (const RunEvent& event : run.events) {
      if (event.kind == RunEvent::Kind::started || event.kind == RunEvent::Kind::note) continue;
      const std::string kind = option::word(event.kind);
      const std::string what = event.kind == RunEvent::Kind::slow_rank
                                   ? event.text
                                   : fmt::format("{}{}{}", kind, event.text.empty() ? "" : ": ", event.text);
      marks.push_back({{"x", event.step},
                       {"kind", kind},
                       {"text", (runs.size() > 1 ? run.name + ": " : "") + cut(what, 300)}});
      if (runs.size() > 1) marks.back()["run"] = number;
    }
  }
  const std::size_t all = marks.size();
  if (all <= max_marks) return marks;
  json some;
  for (std::size_t m = 0; m < max_marks; ++m) some.push_back(marks[m * (all - 1) / (max_marks - 1)]);
  return some;
}

/// Says how curves differ from the logged values; null if they do not.
json note_of(std::span<const RunLog> runs, const std::vector<json>& charts) {
  std::size_t logged_points = 0, curve_points = 0;
  bool pale = false;
  for (const RunLog& run : runs)
    for (const Series& series : run.series) logged_points = std::max(logged_points, series.steps.size());
  for (const json& chart : charts) {
    for (const json& one : chart["curves"]) {
      curve_points = std::max(curve_points, one["x"].size());
      pale = pale || one["style"].get_ref<const std::string&>().ends_with(" raw");
    }
  }
  std::string text;
  if (runs.size() > max_marked_runs)
    text = "Training curves with 100 steps or more are means over 4 % of the steps. ";
  if (pale) text = "Pale: logged values. Line: their mean over 4 % of the steps. ";
  if (curve_points < logged_points && runs.size() <= max_marked_runs)
    text += fmt::format(
        "Curves have at most {} of {} points: the minimum and maximum of each part, and both ends.",
        whole(static_cast<std::int64_t>(curve_points)), whole(static_cast<std::int64_t>(logged_points)));
  return note(text);
}

/// When each run was at which step, for an axis of time; null if the runs say too little.
json times_of(std::span<const RunLog> runs) {
  const std::size_t max_times = std::clamp<std::size_t>(4'000 / runs.size(), 4, 200);  // of a run
  constexpr double min_duration_s = 10;  // times are whole seconds
  json all;
  for (const RunLog& run : runs) {
    if (run.times.values.empty() || run.times.values.back() < min_duration_s) return {};
    const auto& [steps, seconds] = reduce({run.times.steps, run.times.values}, max_times);
    all.push_back({{"steps", steps}, {"seconds", seconds}});
  }
  return all;
}

constexpr std::array dashes{"", " dashed", " dotted"};

}  // namespace

std::vector<std::string> styles_of(std::span<const RunLog> runs) {
  const std::vector<std::size_t> order = rank(runs).order;
  std::vector<std::string> styles(runs.size(), "rest");
  for (std::size_t place = 0; place < std::min(order.size(), max_coloured); ++place)
    styles[order[place]] = fmt::format("c{}", place);
  return styles;
}

std::vector<json> curves_of(std::span<const RunLog> runs, std::size_t max_bytes) {
  constexpr std::size_t max_charts = 40, max_marks = 200;
  const json marks = marks_of(runs, max_marks);
  max_bytes -= std::min(max_bytes, json_text(marks).size());
  const json times = times_of(runs);
  max_bytes -= std::min(max_bytes, json_text(times).size());
  const std::vector<std::string> styles = styles_of(runs), labels = labels_of(runs);
  std::vector<std::size_t> back_to_front(runs.size());  // grey curves first, the best on top
  std::iota(back_to_front.begin(), back_to_front.end(), 0);
  if (runs.size() > max_coloured)
    std::ranges::stable_sort(back_to_front, std::greater(), [&](std::size_t r) { return styles[r]; });

  std::vector<std::string> keys{"loss"};
  std::map<std::string, std::size_t> curves;
  std::size_t count = 0;
  for (const RunLog& run : runs) {
    for (const Series& series : run.series) {
      const std::string key = chart_key(series.name, runs);
      if (key == "samples") continue;  // a straight line
      ++count;
      if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
      ++curves[key];
    }
  }
  // After the loss: evaluations, known metrics, then metrics of the program.
  std::ranges::stable_sort(keys, {}, [](const std::string& key) {
    if (key == "loss") return std::size_t{0};
    if (key.rfind("eval ", 0) == 0) return std::size_t{1};
    const auto row = std::ranges::find(known, std::string_view(key), &Known::name);
    return 2 + static_cast<std::size_t>(row - known.begin());
  });
  if (keys.size() > max_charts) keys.resize(max_charts);
  constexpr std::size_t bytes_of_point = 14, bytes_of_curve = 100;
  count = std::max<std::size_t>(1, count);
  const std::size_t points =
      std::clamp((max_bytes / count - std::min(max_bytes / count, bytes_of_curve)) / bytes_of_point,
                 std::size_t{24}, max_points);

  std::vector<json> charts;
  std::string omitted;
  for (const std::string& key : keys) {
    if (curves[key] == 0) continue;
    json chart = titled(key);
    if (key == "loss") chart["wide"] = true;
    if (key == "lr") chart["linear"] = true;
    if (key.starts_with("eval "))
      chart["linear"] = std::ranges::all_of(runs, [&](const RunLog& run) {
        return std::ranges::all_of(run.series, [&](const Series& series) {
          return chart_key(series.name, runs) != key ||
                 (larger_is_better(run, series.name) && std::ranges::max(series.values) <= 1);
        });
      });
    chart["legend"] = runs.size() <= max_coloured;
    std::vector<json> lines, behind;  // pale curves are behind the lines
    for (const std::size_t r : back_to_front) {
      std::size_t nth = 0;
      std::vector<const Series*> here;
      for (const Series& series : runs[r].series)
        if (chart_key(series.name, runs) == key) here.push_back(&series);
      std::ranges::stable_sort(here, {}, [](const Series* one) {
        return is_of_evaluation(one->name) + one->name.starts_with("eval_ema_");
      });
      const bool has_both = !here.empty() && key == "loss" && is_of_evaluation(here.back()->name);
      if (has_both) chart["title"] = "Loss", chart["unit"] = "training and evaluation";
      // Of many parts (ranks) only the one with the largest values is coloured.
      const bool crowded =
          runs.size() == 1 && here.size() > max_coloured_parts && !part_of(here[0]->name).empty();
      const Series* const extreme = crowded ? *std::ranges::max_element(here, {}, median_of) : nullptr;
      if (crowded) {
        std::swap(*std::ranges::find(here, extreme), here.back());  // drawn above the others
        chart["note"] = fmt::format("In colour: {}, which has the largest median.", part_of(extreme->name));
        chart["legend"] = false;
      }
      for (const Series* const one : here) {
        const Series& series = *one;
        std::string label = runs.size() > 1 ? labels[r] : series.name, style = styles[r];
        std::string weights = is_of_evaluation(series.name) ? parse(series.name, runs).weights : "";
        if (has_both)
          weights = weights.empty() ? "training" : "evaluation" + (weights == "model" ? "" : ", " + weights);
        if (runs.size() == 1) {
          style = fmt::format("c{}{}", nth % 7, nth < 7 ? "" : nth < 14 ? " dashed" : " dotted");
          if (!weights.empty()) label = weights;
          if (series.name.starts_with("eval_ema_") && nth > 1 && nth < 7)
            style += " dashed";  // curves of EMAs may coincide
          if (const std::string part = part_of(series.name); !part.empty()) label = part;
          if (crowded) style = one == extreme ? "c1" : "rest";
        } else if (nth > 0) {
          style += dashes[nth % dashes.size()];
          const std::string part = part_of(series.name);
          label += ", " + (part.empty() ? weights : part);
        }
        ++nth;
        const Points all{series.steps, series.values};
        const bool noisy = key != "lr" && !is_of_evaluation(series.name) && all.x.size() >= smooth_from;
        const auto add = [&](std::vector<json>& place, const char* as, const Points& some) {
          place.push_back(curve(label, style + as, some));
          if (runs.size() > 1) place.back()["run"] = r;
        };
        if (noisy && points > smooth_points && runs.size() <= max_with_raw) {
          add(behind, " raw", reduce(all, points));
          add(lines, "", smooth(all, smooth_points));
        } else if (noisy && runs.size() > max_with_raw) {
          add(lines, "", smooth(all, std::min(points, smooth_points)));
          lines.back()["also_x"] = {all.x.front(), all.x.back()};  // the axis includes them
        } else {
          add(lines, "", reduce(all, points));
        }
      }
    }
    lines.insert(lines.begin(), behind.rbegin(), behind.rend());
    chart["curves"] = std::move(lines);
    if (const std::size_t bytes = json_text(chart).size(); bytes > max_bytes) {
      omitted += (omitted.empty() ? "" : ", ") + chart["title"].get<std::string>();
    } else {
      max_bytes -= bytes;
      charts.push_back(std::move(chart));
    }
  }
  if (charts.empty() && omitted.empty()) return {note("The run has not logged a step yet.")};
  const json explanation = note_of(runs, charts);
  return {explanation,
          {{"charts", {{"charts", std::move(charts)}, {"marks", marks}, {"times", times}, {"zooms", true}}}},
          note(omitted.empty() ? "" : cut("Omitted to limit the size of the page: " + omitted, 1'000))};
}

}  // namespace lockstep::report
