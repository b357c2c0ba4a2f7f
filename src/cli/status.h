// The rows and the table of runs, which lockstep sweep shows as well.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

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
/// Sets values by the first of the metrics that a run has, and differences, and puts the best run first:
/// failed runs after all others, then those without a value. Returns the metric; empty: no run has one.
std::string rank_by(std::initializer_list<std::string> metrics, std::vector<RunRow>& rows);
/// With a heading; each column but the last is as wide as its longest cell. figures: with loss, speed and
/// time left; not empty metric: with its values and the differences.
std::string to_table(const std::vector<RunRow>& rows, bool figures, const std::string& metric);

}  // namespace lockstep::cli
