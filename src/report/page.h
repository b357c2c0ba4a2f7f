// Private to the library: which documents show runs, and results of benches.
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

/// A run's colour: "c0" ... where colours can be told apart, "rest" for the others.
std::vector<std::string> styles_of(std::span<const RunLog> runs);
/// The value by which runs are compared: the least eval_loss, else the last loss; infinite without either.
double score_of(const RunLog& run);

/// The curves of every metric of the runs, of few enough points for `max_bytes`, with what explains them.
std::vector<json> curves_of(std::span<const RunLog> runs, std::size_t max_bytes);

/// The newest, the oldest and as many in between of RUN/samples/*.png and *.txt as `max_bytes` allow, and
/// how many there are; empty without samples.
std::vector<json> samples_of(const RunLog& run, std::size_t max_bytes);

/// One step of a trace file (log.trace), of usual length, as bars; null if there is no such file.
json step_trace_of(const std::string& path);

/// The document of one run or more, whose page has at most max_page_bytes.
json document_of(std::span<const RunLog> runs);

/// A result of lockstep bench, as --json prints it.
struct Result {
  std::string file;  ///< where it is from; empty: it was just measured
  json values;
};
/// Several are compared: curves over ranks and sizes, a row of a table each. DataError that names the file if
/// it is no such result.
json document_of(std::span<const Result> results);

/// Whether the path is FILE.json, and no run.
bool is_result(const std::string& path);
/// Writes the page of these run directories, or of these results. Errors of
/// read_run() and document_of(); UsageError if `out` exists and is no page of ours, or cannot be made.
void write_report(std::span<const std::string> paths, const std::string& out);

}  // namespace lockstep::report
