// Requests to stop or to save a checkpoint: signals, and files in the run directory.
#pragma once

#include <array>
#include <csignal>
#include <string>

namespace lockstep::train {

/// What this rank was asked to do. The step header collects the requests of all ranks, so that all obey at
/// the same step.
struct Requests {
  bool preempt = false;     ///< SIGUSR2 or SIGTERM: save a checkpoint, exit with code 75
  bool user_stop = false;   ///< Ctrl-C or RUN/stop: save a checkpoint, exit with code 76
  bool checkpoint = false;  ///< RUN/checkpoint: save a checkpoint and continue
};

/// Catches SIGINT, SIGTERM and SIGUSR2 while it lives; the handlers only set flags. A second SIGINT ends the
/// process at once. One object at a time.
///
/// Its destructor restores what the signals did before, with one exception: once a preemption was obeyed,
/// SIGTERM and SIGUSR2 are ignored. Schedulers and job scripts send both, perhaps to this rank only after the
/// run was saved, and the process must still exit with its own code.
class StopRequests {
 public:
  /// watch_files: looks for RUN/stop and RUN/checkpoint in `run_directory`, which rank 0 does.
  StopRequests(std::string run_directory, bool watch_files);
  ~StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;

  /// Cheap: called every step.
  Requests pending() const;
  /// Call it with what all ranks together have obeyed: removes the files of these requests.
  void clear(const Requests& obeyed);

 private:
  std::string stop_file_, checkpoint_file_;
  bool watch_files_;
  bool preempted_ = false;
  std::array<struct sigaction, 3> previous_{};  // of each signal
};

}  // namespace lockstep::train
