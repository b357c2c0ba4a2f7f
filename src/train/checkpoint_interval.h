// checkpoint.every = auto: as many steps as take ten minutes.
#pragma once

#include <string>
#include <vector>

#include "lockstep/checkpoint/run_directory.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/comm/communicator.h"
#include "train/config.h"

namespace lockstep::train {

/// Chooses checkpoint.every by the first steps on rank 0, and writes it where the configuration is kept: the
/// run directory and the checkpoints.
class CheckpointInterval {
 public:
  /// All of them must outlive this.
  CheckpointInterval(Config& config, checkpoint::RunDirectory& run, checkpoint::Store& store,
                     comm::HostGroup& world)
      : config_(config), run_(run), store_(store), world_(world) {}

  /// Comes after each step, with its time. Returns a line for the log once it has chosen, else nothing. It is
  /// collective in the step in which it chooses, the same on every rank.
  std::string after_step(double step_ms);

 private:
  Config& config_;
  checkpoint::RunDirectory& run_;
  checkpoint::Store& store_;
  comm::HostGroup& world_;
  std::vector<double> step_ms_;  // of the first steps, while checkpoint.every is auto
};

}  // namespace lockstep::train
