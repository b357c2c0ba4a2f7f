// When the time limit of the Slurm job ends this program.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "lockstep/kernels/context.h"

namespace lockstep::train {

/// Parses the remaining time that squeue prints for "%L", in seconds: "1-02:03:04", "02:03:04", "03:04" or
/// "4" (seconds). Nothing for UNLIMITED, NOT_SET, INVALID and malformed text.
std::optional<double> seconds_of(std::string_view slurm_time);

/// The time limit, from SLURM_JOB_END_TIME and from squeue. A background thread asks squeue every few
/// minutes, as the limit of a running job can be changed. Outside Slurm there is no limit.
class TimeLimit {
 public:
  /// Rank 0 asks.
  explicit TimeLimit(const Context& context) : TimeLimit(context.world().rank() == 0) {}
  explicit TimeLimit(bool asks);
  ~TimeLimit();
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

  /// Seconds until Slurm ends the job; infinite if there is no limit, if none is known yet, and on ranks that
  /// do not ask.
  double left_s() const;

 private:
  struct Watch;
  std::unique_ptr<Watch> watch_;
};

}  // namespace lockstep::train
