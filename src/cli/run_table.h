// The table of runs of lockstep status and lockstep sweep.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/run_log.h"
#include "train/watch/run_status.h"

namespace lockstep::cli {

/// A run, and with a metric how good it is.
struct RunRow {
  std::string run;  ///< path
  train::RunStatus status;
  std::optional<double> value{};  ///< report::summary_of() of the metric; none: the run has no such value
  std::string differs{};          ///< "optimizer.lr=0.1 ...": the keys that differ between the runs
};

/// The directory itself if it is a run, else the runs in it: 1, 2, 10 before names. Empty if there is none.
/// Throws as run_status().
std::vector<RunRow> runs_at(const std::string& directory);
/// Sets values and differences, and puts the best first: runs that failed after all others, then those
/// without a value. UsageError naming the metrics of the runs if none has this one.
void rank_by(const std::string& metric, std::vector<RunRow>& rows);

/// With a heading; each column but the last is as wide as its longest cell. figures: with loss, speed and
/// time left; not empty metric: with its values and the keys that differ.
std::string to_table(const std::vector<RunRow>& rows, bool figures, const std::string& metric = "");

}  // namespace lockstep::cli
