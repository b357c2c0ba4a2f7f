// The document of benchmark results: it contains them unchanged, and the page's script draws them
// (assets/page.js, results).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "lockstep/base/error.h"
#include "report/report.h"

namespace lockstep::report {
namespace {

/// The keys that the page draws from each row of a benchmark's results.
struct RowKind {
  std::string_view name;  ///< key of a text; empty: no text
  std::array<std::string_view, 3> numbers;
};
constexpr std::array kinds{RowKind{"", {"bytes", "ranks", "lockstep_ms"}},
                           RowKind{"mode", {"step_ms", "compute_ms", "critical_path_ms"}},
                           RowKind{"name", {"calls", "ms", "gb_s"}},
                           RowKind{"model", {"ranks", "samples_per_second", "step_ms"}},
                           RowKind{"", {"ranks", "write_mb_s", "raw_mb_s"}}};

bool fits(const json& row, const RowKind& kind) {
  const auto is_drawn = [&](std::string_view key) {  // at least 0, and within the range of an axis
    const auto found = row.find(key);
    if (found == row.end() || !found->is_number()) return false;
    const double figure = found->get<double>();
    const bool divides = key == "ranks" || key == "bytes" || key == "samples_per_second";
    return figure >= 0 && figure < (key == "ranks" ? 1e6 : 1e15) && !(divides && figure == 0);
  };
  return row.is_object() && std::ranges::all_of(kind.numbers, is_drawn) &&
         (kind.name.empty() || (row.contains(kind.name) && row[std::string(kind.name)].is_string()));
}

bool is_result(const json& values) {
  if (!values.is_object()) return false;
  json rows = json::array({values});
  for (const char* const key : {"rows", "operations"})
    if (values.contains(key)) rows = values[key];
  return rows.is_array() && !rows.empty() && std::ranges::any_of(kinds, [&](const RowKind& kind) {
           return std::ranges::all_of(rows, [&](const json& row) { return fits(row, kind); });
         });
}

}  // namespace

json document_of(std::span<const Result> results) {
  json all = json::array();
  for (const Result& result : results) {
    if (!is_result(result.values))
      throw DataError("{}: is not a result that lockstep bench --json printed", result.file);
    all.push_back(result.values);
    if (results.size() > 1) all.back()["file"] = std::filesystem::path(result.file).filename().string();
  }
  return {{"title", results.size() == 1 ? std::filesystem::path(results[0].file).filename().string()
                                        : fmt::format("{} results", results.size())},
          {"lead", "Results of lockstep bench: medians of the slowest rank."},
          {"sections", json::array({section("Results", {{{"results", std::move(all)}}})})},
          {"footer", "Written by lockstep report."}};
}

}  // namespace lockstep::report
