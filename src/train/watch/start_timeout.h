// Private to the module: limits the time of MPI's start, before there is a watchdog.
#pragma once

#include <string>
#include <thread>
#include <vector>

#include "base/launcher.h"
#include "base/thread.h"

namespace lockstep::train {

/// MPI starts during its life. After timeout_s (0: no limit) the process exits with code 5, which ends the
/// job; a minute later if all ranks seem present, as a busy node may just be slow. One rank of each node
/// reports the missing ranks. Ranks of one node see each other by sockets with abstract names, which end with
/// their processes.
class StartTimeout {
 public:
  explicit StartTimeout(double timeout_s);
  ~StartTimeout();
  StartTimeout(const StartTimeout&) = delete;
  StartTimeout& operator=(const StartTimeout&) = delete;

 private:
  std::vector<int> missing_ranks() const;
  std::string describe(const std::vector<int>& missing) const;
  void watch(double timeout_s);

  const int rank_ = launcher::rank(), launched_ = launcher::size();
  const int ranks_ = launched_ < 0 ? launcher::srun_tasks() : launched_;
  int presence_ = -1;  ///< the socket that shows the presence of this rank
  StopEvent started_;
  std::thread thread_;
};

}  // namespace lockstep::train
