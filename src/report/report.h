// Private to the library: the documents of runs and of benchmark results, and lockstep report.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "report/document.h"
#include "report/run_log.h"

namespace lockstep::report {

inline constexpr std::size_t max_points = 2'000;   ///< of a curve
inline constexpr std::size_t max_marked_runs = 3;  ///< with events on the curves

/// The CSS class of each run's colour: "c0" to "c5" for the best runs by rank(), "rest" (grey) for the
/// others.
std::vector<std::string> styles_of(std::span<const RunLog> runs);

/// The names of runs on curves: the values of the keys that differ, where these are few and tell them apart.
std::vector<std::string> labels_of(std::span<const RunLog> runs);

/// The charts of all metrics of the runs, reduced to fit max_bytes, and notes about the reduction.
std::vector<json> curves_of(std::span<const RunLog> runs, std::size_t max_bytes);

/// The newest and the oldest of RUN/samples/*.png and *.txt, as many between them as fit max_bytes, and a
/// note with their number; empty without samples.
std::vector<json> samples_of(const RunLog& run, std::size_t max_bytes);

/// The step of median length in a trace file (log.trace), as bars; null if the file is missing or invalid.
json step_trace_of(const std::string& path);

/// The document of one or more runs. Its page has at most max_page_bytes.
json document_of(std::span<const RunLog> runs);

/// A result that lockstep bench --json printed.
struct Result {
  std::string file;  ///< the file that holds it
  json values;
};
/// Whether it is one that lockstep eval --json printed.
bool is_evaluation(const Result& result);
/// The parts of a section about evaluations: their metrics, and where they have them accuracy by class and
/// the confusion matrix.
std::vector<json> evaluations_of(std::span<const Result> results);
/// The document of one or more results: curves over ranks and sizes, and a table with a row per result.
/// DataError with the name of a file that is not such a result.
json document_of(std::span<const Result> results);

/// Whether the path is a FILE.json, not a run directory.
bool is_result(const std::string& path);
/// Writes the page of these run directories with results of lockstep eval, or of these results of benchmarks.
/// Errors of read_run(), document_of() and check_page().
void write_report(std::span<const std::string> paths, const std::string& out);

}  // namespace lockstep::report
