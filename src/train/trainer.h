// Trainer: a run from its configuration to its end: train, evaluate, checkpoint, stop.
#pragma once

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/train/session.h"
#include "train/config.h"

namespace lockstep::train {

struct RunOptions {
  std::string directory;  ///< RUN
  /// Where the run starts: "auto": where the directory stands; "never": from nothing, in a directory that
  /// holds no checkpoint; else a checkpoint FILE whose weights a new run starts from, in a new directory.
  std::string resume = "auto";
};

/// Trains on all ranks (collective) and returns how the run ended: done, preempted or user_stopped (a
/// checkpoint is written in each case). Throws the same Error on every rank. `config.train.shards` = 0 is
/// settled here: the shards of the run that the directory holds, or the world size.
ExitCode train(Session& session, Config config, const RunOptions& options);

}  // namespace lockstep::train
