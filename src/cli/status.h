// The rows and the table of runs, which lockstep sweep shows as well.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/run_log.h"
#include "train/watch/run_status.h"

namespace lockstep::cli {

struct RunRow {
  std::string run;  ///< path
  train::RunStatus status;
  std::optional<double> value{};  ///< of a metric, by report::summary_of()
  std::string differs{};          ///< "optimizer.lr=0.1 ...": the keys that differ between the runs
};

/// The directory if it is a run, else the runs in it: 1, 2, 10 before names. Throws as run_status().
std::vector<RunRow> runs_at(const std::string& directory);
/// Whether report::read_run() can read it: a start may have only its lock yet.
inline bool has_log(const RunRow& row) { return row.status.steps || row.status.exit_code; }
/// Sets values and differences, and sorts the rows by report::rank().
report::Ranking rank_by(const std::string& metric, std::vector<RunRow>& rows);
/// With a heading; each column but the last is as wide as its longest cell. figures: with loss, speed and
/// time left; not empty metric: with its values and the differences.
std::string to_table(const std::vector<RunRow>& rows, bool figures, const std::string& metric);

}  // namespace lockstep::cli
