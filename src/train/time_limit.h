// Private to the module: when the time limit of the Slurm job ends it.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/thread.h"

namespace lockstep::train {

/// Parses the remaining time that squeue prints for "%L", in seconds: "1-02:03:04", "02:03:04", "03:04" or
/// "4" (seconds). Nothing for UNLIMITED, NOT_SET, INVALID and malformed text.
std::optional<double> seconds_of(std::string_view slurm_time);

/// The time limit, from SLURM_JOB_END_TIME and from squeue. A background thread asks squeue every few
/// minutes, as the limit of a running job can be changed. Outside Slurm there is no limit.
class TimeLimit {
 public:
  explicit TimeLimit(bool asks);
  ~TimeLimit();
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

  /// Seconds until Slurm ends the job; infinite if there is no limit, or none is known yet.
  double left_s() const;

 private:
  void ask_squeue(const std::string& job);

  std::atomic<double> end_s_;  ///< on the monotonic clock
  StopEvent stop_;
  std::thread thread_;
};

}  // namespace lockstep::train
