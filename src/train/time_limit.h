// Private to the module: when the job's time is over, from Slurm.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace lockstep::train {

/// Slurm's "%L" of squeue, the time that is left: "1-02:03:04", "02:03:04", "03:04" or "4" (minutes and
/// seconds, or seconds), in seconds; none for UNLIMITED, NOT_SET, INVALID and what is no time.
std::optional<double> seconds_of(std::string_view slurm_time);

/// SLURM_JOB_END_TIME, or else squeue, which is asked on a separate thread and again every few minutes, as
/// a limit can be changed while the job runs. Knows nothing outside Slurm.
class TimeLimit {
 public:
  explicit TimeLimit(bool asks);
  ~TimeLimit();
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

  /// Seconds until the job is ended; infinite if there is no limit, or none is known (yet).
  double left_s() const;

 private:
  void ask_now_and_then(const std::string& job);

  std::atomic<double> end_s_;  ///< on the monotonic clock
  std::atomic<bool> over_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
};

}  // namespace lockstep::train
