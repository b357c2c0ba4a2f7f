// One step of a trace that log.trace has written: a row for the computation and one for each bucket.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "lockstep/base/error.h"
#include "report/page.h"

namespace lockstep::report {
namespace {

using nlohmann::json;

struct Span {
  std::string name;
  int rank = 0, row = 0;
  double start_us = 0, length_us = 0;
};

constexpr int most_ranks = 4;

/// The spans of one step of the first ranks: the step whose length on rank 0 is the median.
std::pair<std::int64_t, std::vector<Span>> usual_step(const json& events) {
  std::map<std::int64_t, std::vector<Span>> steps;
  std::vector<std::pair<double, std::int64_t>> lengths;
  for (const json& event : events) {
    if (!event.is_object() || event.value("ph", "") != "X" || event.value("pid", 0) >= most_ranks) continue;
    const std::int64_t step = event.value("args", json::object()).value("step", std::int64_t{0});
    const Span span{event.value("name", ""), event.value("pid", 0), event.value("tid", 0),
                    event.value("ts", 0.0), event.value("dur", 0.0)};
    steps[step].push_back(span);
    if (span.rank == 0 && span.row == 0) lengths.emplace_back(span.length_us, step);
  }
  if (lengths.empty()) return {};
  const auto middle = lengths.begin() + std::ptrdiff_t(lengths.size() / 2);
  std::nth_element(lengths.begin(), middle, lengths.end());
  return {middle->second, steps[middle->second]};
}

}  // namespace

std::string step_trace_html(const std::string& path) {
  constexpr std::uint64_t most_bytes = std::uint64_t{1} << 28;
  json trace;
  try {
    trace = json::parse(read_text(path, most_bytes), nullptr, false);
  } catch (const Error&) {
    return "";
  }
  if (!trace.is_object() || !trace["traceEvents"].is_array()) return "";
  std::pair<std::int64_t, std::vector<Span>> found;
  try {
    found = usual_step(trace["traceEvents"]);
  } catch (const json::exception&) {  // a file of another program
    return "";
  }
  const std::vector<Span>& spans = found.second;
  if (spans.empty()) return "";
  std::map<std::pair<int, int>, int> rows;
  double start = spans[0].start_us, end = start;
  for (const Span& span : spans) {
    rows[{span.rank, span.row}] = 0;
    start = std::min(start, span.start_us);
    end = std::max(end, span.start_us + span.length_us);
  }
  int next = 0;
  for (auto& [key, row] : rows) row = next++;
  constexpr double row_height = 17, left = 124, width = 1100, top = 4;
  const double plot = width - left - 14, bottom = top + row_height * next,
               length_ms = std::max((end - start) / 1e3, 1e-6);
  const auto x_at = [&](double us) { return left + plot * (us - start) / 1e3 / length_ms; };
  std::string html = fmt::format(
      "<div class=\"scroll\"><svg viewBox=\"0 0 {} {}\" style=\"min-width:640px;width:100%\" role=\"img\" "
      "aria-label=\"one step\"><g class=\"grid\">",
      width, bottom + 42);
  const auto out = std::back_inserter(html);
  for (const double tick : ticks(0, length_ms, 8))
    fmt::format_to(out,
                   R"(<path d="M{0:.1f} {1}V{2:.1f}"/><text class="x" x="{0:.1f}" y="{3:.1f}">{4}</text>)",
                   x_at(start + tick * 1e3), top, bottom + 4, bottom + 19, tick_text(tick));
  fmt::format_to(out, R"(<text class="x" x="{:.1f}" y="{:.1f}">ms since the step began</text>)",
                 left + plot / 2, bottom + 38);
  for (const auto& [key, row] : rows) {
    const std::string name = key.second == 0   ? "step"
                             : key.second == 1 ? "compute"
                                               : fmt::format("bucket {}", key.second - 2);
    fmt::format_to(out, R"(<text class="y" x="{}" y="{:.1f}">rank {} · {}</text>)", left - 8,
                   top + row_height * row + 12.5, key.first, name);
  }
  html += "</g><g class=\"spans\">";
  for (const Span& span : spans) {
    const char* const kind = span.row == 0  ? "step"
                             : span.row > 1 ? (span.name.find("wait") != std::string::npos ? "late" : "comm")
                             : span.name == "optimizer" ? "other"
                                                        : "";
    fmt::format_to(
        out,
        R"(<rect class="{}" x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{}" rx="1"><title>{}: {:.3f} ms</title></rect>)",
        kind, x_at(span.start_us), top + row_height * rows[{span.rank, span.row}] + 2.5,
        std::max(0.8, plot * span.length_us / 1e3 / length_ms), row_height - 5, escape_html(span.name),
        span.length_us / 1e3);
  }
  html += "</g></svg></div>";
  return html + fmt::format("<p class=\"note\">Step {}, of median length on rank 0; {} has all steps.</p>",
                            found.first, escape_html(path));
}

}  // namespace lockstep::report
