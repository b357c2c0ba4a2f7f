// One step of a trace (log.trace): a row for the computation and one for each bucket.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>

#include "base/files.h"
#include "lockstep/base/error.h"
#include "report/report.h"

namespace lockstep::report {
namespace {

struct Span {
  std::string name;
  int rank = 0, row = 0;
  double start_us = 0, length_us = 0;
};

constexpr int max_ranks = 4;

/// The step of median length on rank 0, and its spans on the first max_ranks ranks.
std::pair<std::int64_t, std::vector<Span>> usual_step(const json& events) {
  std::map<std::int64_t, std::vector<Span>> steps;
  std::vector<std::pair<double, std::int64_t>> lengths;
  for (const json& event : events) {
    if (!event.is_object() || event.value("ph", "") != "X" || event.value("pid", 0) >= max_ranks) continue;
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

json step_trace_of(const std::string& path) {
  constexpr std::uint64_t max_bytes = std::uint64_t{1} << 28;
  json trace;
  try {
    trace = json::parse(read_text(path, max_bytes), nullptr, false);
  } catch (const Error&) {
    return {};
  }
  if (!trace.is_object() || !trace["traceEvents"].is_array()) return {};
  std::pair<std::int64_t, std::vector<Span>> found;
  try {
    found = usual_step(trace["traceEvents"]);
  } catch (const json::exception&) {  // a file of another program
    return {};
  }
  const std::vector<Span>& spans = found.second;
  if (spans.empty()) return {};
  std::map<std::pair<int, int>, std::size_t> rows;
  double start = spans[0].start_us;
  for (const Span& span : spans) {
    rows[{span.rank, span.row}] = SIZE_MAX;
    start = std::min(start, span.start_us);
  }
  constexpr std::size_t max_rows = 120;
  json names = json::array(), bars = json::array();
  for (auto& [key, row] : rows) {
    if (names.size() == max_rows) break;
    row = names.size();
    const std::string name = key.second == 0   ? "step"
                             : key.second == 1 ? "compute"
                                               : fmt::format("bucket {}", key.second - 2);
    names.push_back(fmt::format("rank {} · {}", key.first, name));
  }
  for (const Span& span : spans) {
    if (rows[{span.rank, span.row}] == SIZE_MAX) continue;
    const char* const kind = span.row == 0  ? "step"
                             : span.row > 1 ? (span.name.find("wait") != std::string::npos ? "late" : "comm")
                             : span.name == "optimizer" ? "other"
                                                        : "";
    bars.push_back({{"row", rows[{span.rank, span.row}]},
                    {"kind", kind},
                    {"name", fmt::format("{}: {:.3f} ms", span.name, span.length_us / 1e3)},
                    {"start", (span.start_us - start) / 1e3},
                    {"length", span.length_us / 1e3}});
  }
  return {{"bars",
           {{"axis", "ms since the start of the step"},
            {"rows", std::move(names)},
            {"spans", std::move(bars)},
            {"note", fmt::format("Step {}, which has the median length on rank 0. {} contains all steps.",
                                 found.first, path)}}}};
}

}  // namespace lockstep::report
