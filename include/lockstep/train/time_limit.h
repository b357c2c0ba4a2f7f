// The time limit of the Slurm job that ends this program.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "lockstep/kernels/context.h"

namespace lockstep::train {

/// Parses the remaining time that squeue prints for "%L", in seconds: "1-02:03:04", "02:03:04", "03:04" or
/// "4" (seconds). None for UNLIMITED, NOT_SET, INVALID and malformed text.
std::optional<double> seconds_of(std::string_view slurm_time);

/// The time limit, from SLURM_JOB_END_TIME and from squeue. A background thread asks squeue every few
/// minutes, as the limit of a running job can be changed. Outside Slurm there is no limit.
class TimeLimit {
 public:
  /// Rank 0 runs squeue.
  explicit TimeLimit(const Context& context) : TimeLimit(context.world().rank() == 0) {}
  explicit TimeLimit(bool asks);  ///< whether this rank runs squeue: only one does
  ~TimeLimit();
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

  /// Seconds until Slurm ends the job; infinite if there is no limit, if it is not known yet, and on ranks
  /// that do not run squeue.
  double left_s() const;

  /// Records the duration of a step and a save, in seconds. A stop before the limit must leave time for the
  /// longest.
  void note_step(double seconds) { longest_step_s_ = std::max(longest_step_s_, seconds); }
  /// A stop leaves time for the longest save so far.
  void note_save(double seconds) { longest_save_s_ = std::max(longest_save_s_, seconds); }
  /// Whether it is time to stop: at most twice the time of a step and a save is left. Before the first save,
  /// a save is assumed to write the parameters and three times as many bytes of state at 100 MB/s.
  bool is_up(std::int64_t parameter_bytes) const;

 private:
  struct Watch;
  std::unique_ptr<Watch> watch_;
  double longest_step_s_ = 0, longest_save_s_ = 0;
};

}  // namespace lockstep::train
