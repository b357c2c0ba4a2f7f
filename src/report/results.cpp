// The document of benchmark results: it contains them unchanged, and the page's script draws them
// (assets/page.js, results).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <numeric>

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

/// [classes, classes], of whole numbers.
bool is_confusion(const json& matrix, const json& classes) {
  return matrix.is_array() && classes.is_array() && matrix.size() == classes.size() &&
         std::ranges::all_of(classes, [](const json& name) { return name.is_string(); }) &&
         std::ranges::all_of(matrix, [&](const json& row) {
           return row.is_array() && row.size() == classes.size() &&
                  std::ranges::all_of(row, [](const json& count) { return count.is_number_unsigned(); });
         });
}

/// A row a class; of a few classes with the matrix beside it.
json by_class(const json& matrix, const json& classes) {
  constexpr std::size_t max_columns = 30, max_rows = 1'000, before_matrix = 3;
  json columns{"class", "samples", "accuracy"}, rows = json::array();
  for (std::size_t label = 0; label < std::min(classes.size(), max_rows); ++label) {
    const auto counts = matrix[label].get<std::vector<std::int64_t>>();
    const std::int64_t samples = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    const std::string name = cut(classes[label].get<std::string>(), 40);
    rows.push_back({name, samples, samples > 0 ? json(double(counts[label]) / double(samples)) : json()});
    if (classes.size() > max_columns) continue;
    columns.push_back("as " + name);
    for (const std::int64_t count : counts) rows.back().push_back(count);
  }
  json part = table(std::move(columns), std::move(rows));
  part["table"]["shaded_from"] = before_matrix;
  return part;
}

}  // namespace

bool is_evaluation(const Result& result) {
  const json& values = result.values;
  const auto is = [&](const char* key, bool (json::*kind)() const noexcept) {
    return values.is_object() && values.contains(key) && (values[key].*kind)();
  };
  return is("weights", &json::is_string) && is("step", &json::is_number) && is("samples", &json::is_number) &&
         (!values.contains("confusion") ||
          is_confusion(values["confusion"], values.value("classes", json())));
}

std::vector<json> evaluations_of(std::span<const Result> results) {
  std::vector<json> parts;
  for (const Result& result : results) {
    Pairs metrics;
    for (const auto& [key, value] : result.values.items())
      if (value.is_primitive())
        metrics.emplace_back(key, value.is_number()   ? number(value.get<double>())
                                  : value.is_string() ? value.get<std::string>()
                                                      : "");
    parts.push_back({{"heading", std::filesystem::path(result.file).filename().string()}});
    parts.push_back(key_table(metrics));
    if (const auto matrix = result.values.find("confusion"); matrix != result.values.end())
      parts.push_back(by_class(*matrix, result.values["classes"]));
  }
  return parts;
}

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
