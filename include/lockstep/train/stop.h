// Requests to stop or to checkpoint: signals, and files in the run directory.
#pragma once

#include <string>

namespace lockstep::train {

/// What has been asked of this rank. The requests of all ranks meet in the step header, so that all obey at
/// the same step.
struct Requests {
  bool preempt = false;     ///< SIGUSR2 or SIGTERM: checkpoint, exit 75
  bool user_stop = false;   ///< Ctrl-C or RUN/stop: checkpoint, exit 76
  bool checkpoint = false;  ///< RUN/checkpoint: checkpoint and go on
};

/// Catches SIGINT, SIGTERM and SIGUSR2 while it lives; the handlers only set flags. A second SIGINT ends the
/// process at once. One object at a time.
class StopRequests {
 public:
  /// Looks for RUN/stop and RUN/checkpoint in `run_directory` (only where `watch_files`: rank 0).
  StopRequests(std::string run_directory, bool watch_files);
  ~StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;

  /// Cheap: called every step.
  Requests pending() const;
  /// Removes the request files that `obeyed` names.
  void clear(const Requests& obeyed);

 private:
  std::string stop_file_, checkpoint_file_;
  bool watch_files_;
};

}  // namespace lockstep::train
