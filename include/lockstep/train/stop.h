// Requests to stop or to save a checkpoint: signals, and files in the run directory.
#pragma once

#include <array>
#include <csignal>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/ddp/step.h"
#include "lockstep/kernels/context.h"

namespace lockstep::train {

/// The exit code after these requests: 75 (preempted), 76 (stopped by the user); none: continue.
std::optional<ExitCode> exit_code(const ddp::Requests& obeyed);

/// Catches SIGINT, SIGTERM and SIGUSR2 during its life; the handlers only set flags. A second SIGINT ends the
/// process immediately. One object at a time. The first one also gets the signals that arrived while run()
/// started MPI.
/// Its destructor restores the previous handlers, with one exception: after a preemption, SIGTERM and SIGUSR2
/// are ignored. Schedulers and job scripts send both, perhaps to this rank only after the run was saved, and
/// the process must still exit with its own code.
class StopRequests {
 public:
  /// Rank 0 looks for the files.
  StopRequests(std::string run_directory, const Context& context)
      : StopRequests(std::move(run_directory), context.world().rank() == 0) {}
  /// watch_files: looks for RUN/stop and RUN/checkpoint in `run_directory`, on one rank.
  StopRequests(std::string run_directory, bool watch_files);
  ~StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;

  /// The requests to this rank: a preemption by SIGUSR2 or SIGTERM, a stop by Ctrl-C or RUN/stop, a
  /// checkpoint by RUN/checkpoint. DataParallel::request() sends them to all ranks, so that all obey at the
  /// same step. Cheap: called every step.
  ddp::Requests pending() const;
  /// Call it with the requests that all ranks have obeyed: removes the files of these requests. Warns if one
  /// cannot be removed.
  void clear(const ddp::Requests& obeyed);

  /// Whether the launcher has sent SIGTERM to this rank: mpirun sends it to all ranks when one has died or
  /// when mpirun itself is terminated, and kills them a second later.
  static bool terminated_by_launcher();
  /// Whether another process has sent SIGTERM. From Slurm it has two meanings: a request to stop, if all
  /// ranks are alive, or the last warning before SIGKILL after the death of a rank.
  static bool sigterm_received();

 private:
  std::string stop_file_, checkpoint_file_;
  bool watch_files_;
  bool preempted_ = false;
  std::array<struct sigaction, 3> previous_{};  // of each signal
};

}  // namespace lockstep::train
