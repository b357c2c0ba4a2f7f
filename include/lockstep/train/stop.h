// Requests to stop or to checkpoint: signals, and files in the run directory.
#pragma once

#include <array>
#include <csignal>
#include <string>

namespace lockstep::train {

/// What has been asked of this rank. The requests of all ranks meet in the step header, so that all obey at
/// the same step.
struct Requests {
  bool preempt = false;     ///< SIGUSR2 or SIGTERM: checkpoint, exit 75
  bool user_stop = false;   ///< Ctrl-C or RUN/stop: checkpoint, exit 76
  bool checkpoint = false;  ///< RUN/checkpoint: checkpoint and continue
};

/// Catches SIGINT, SIGTERM and SIGUSR2 while it lives; the handlers only set flags. A second SIGINT ends the
/// process at once. One object at a time.
///
/// Afterwards signals do what they did before, with one exception: once a preemption was obeyed, SIGTERM and
/// SIGUSR2 are ignored. Schedulers and job scripts send both, and the second may come, or reach this rank at
/// all, when the run has saved and ends: the process must still end with its own exit code.
class StopRequests {
 public:
  /// Looks for RUN/stop and RUN/checkpoint in `run_directory` (only where `watch_files`: rank 0).
  StopRequests(std::string run_directory, bool watch_files);
  ~StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;

  /// Cheap: called every step.
  Requests pending() const;
  /// What the ranks together have done: removes the request files that `obeyed` names.
  void clear(const Requests& obeyed);

 private:
  std::string stop_file_, checkpoint_file_;
  bool watch_files_;
  bool preempted_ = false;
  std::array<struct sigaction, 3> before_{};  // what each of the signals did
};

}  // namespace lockstep::train
