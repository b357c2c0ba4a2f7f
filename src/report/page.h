// Private to the library: a page that shows runs. One HTML file, which needs no network.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "report/chart.h"
#include "report/document.h"
#include "report/run_log.h"

namespace lockstep::report {

inline constexpr std::size_t most_points = 2'000;   ///< of a curve
inline constexpr std::size_t most_marked_runs = 3;  ///< with events on the curves

/// A run's colour: "c0" ... where colours can be told apart, "rest" for the others.
std::vector<std::string> styles_of(std::span<const RunLog> runs);
/// The value by which runs are compared: the least eval_loss, else the last loss; infinite without either.
double score_of(const RunLog& run);

/// Every metric of the runs, in curves of few enough points for `most_bytes`.
std::vector<Chart> charts_of(std::span<const RunLog> runs, std::size_t most_bytes);

/// The newest, the oldest and as many in between of RUN/samples/*.png and *.txt as `most_bytes` allow, and
/// how many there are; empty without samples.
std::string samples_html(const RunLog& run, std::size_t most_bytes);

/// One step of a trace file (log.trace), of usual length, as bars; empty if there is no such file.
std::string step_trace_html(const std::string& path);

/// The whole page, of at most most_page_bytes. One run or more.
std::string page_of(std::span<const RunLog> runs);

/// Writes the page of these run directories. Errors of read_run(); UsageError if `out` exists and is no page
/// of ours, or cannot be made.
void write_report(std::span<const std::string> runs, const std::string& out);

}  // namespace lockstep::report
