// Interval: the steps since the last line of metrics, whose averages that line reports.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "base/clock.h"
#include "lockstep/ddp/step.h"
#include "train/run/run_logs.h"

namespace lockstep::train {

class Interval {
 public:
  /// With more ranks a line has three figures and the slowest rank, so that lines do not grow with the job.
  static constexpr std::size_t max_listed_ranks = 64;

  /// `ranks`: number of ranks with reported compute times; 0 on a rank that writes no metrics.
  explicit Interval(int ranks) : compute_ms_(static_cast<std::size_t>(ranks)) {
    unlogged_.reserve(max_unlogged + 1);
  }

  /// Adds a step: its result, how long it waited for data, and compute_ms_of(rank). Allocates nothing.
  template <class ComputeMsOf>
  void add(const ddp::StepResult& result, double data_wait_ms, const ComputeMsOf& compute_ms_of) {
    ++steps_;
    if (unlogged_.size() == max_unlogged) unlogged_.erase(unlogged_.begin());
    unlogged_.push_back(result.mean_loss());
    newest_ = static_cast<std::int64_t>(result.step) + 1;
    exposed_comm_ms_ += result.exposed_comm_ms;
    data_wait_ms_ += data_wait_ms;
    for (std::size_t rank = 0; rank < compute_ms_.size(); ++rank)
      compute_ms_[rank] += compute_ms_of(static_cast<int>(rank));
  }
  /// Begins the next interval now.
  void restart() {
    watch_.restart();
    steps_ = 0;
    exposed_comm_ms_ = data_wait_ms_ = 0;
    std::ranges::fill(compute_ms_, 0);
  }
  /// The same, after the steps got their line of metrics.
  void restart_after_line() {
    restart();
    unlogged_.clear();
  }
  /// For a run that fails: {step, loss} for each step without a line, and for `last`, whose loss may be the
  /// reason.
  void log_last_steps(const ddp::StepResult& last, RunLogs& logs);

  std::int64_t steps() const { return steps_; }
  double step_ms() const { return mean(watch_.elapsed_ms()); }  ///< like the next: one step or more
  double data_wait_ms() const { return mean(data_wait_ms_); }

  /// {step_ms, data_wait_ms, exposed_comm_ms, rank_compute_ms}: means over the steps, one or more. The last
  /// is a list by rank, in whole microseconds; of more ranks {min, median, max}, and slowest_rank is added.
  nlohmann::json to_json() const;

 private:
  double mean(double sum) const { return sum / static_cast<double>(steps_); }

  Stopwatch watch_;
  std::int64_t steps_ = 0;
  double exposed_comm_ms_ = 0, data_wait_ms_ = 0;
  std::vector<double> compute_ms_;  // by rank
  static constexpr std::size_t max_unlogged = 1000;
  std::vector<double> unlogged_;  // losses of the newest steps since the last line
  std::int64_t newest_ = 0;       // of them, counted from 1
};

}  // namespace lockstep::train
