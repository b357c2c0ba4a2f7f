// train(): a run from its configuration to its end. dry_run(): all of it that comes before the first step.
#pragma once

#include <functional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/train/session.h"
#include "train/config.h"

namespace lockstep::train {

struct RunOptions {
  std::string directory;  ///< RUN
  /// "auto": resumes from the newest checkpoint of the directory, if any; "never": a new run, in a directory
  /// without checkpoints; otherwise a FILE: a new run from the weights of this checkpoint, in a new
  /// directory.
  std::string resume = "auto";
  /// Not empty: a new run from the whole state of this checkpoint, under another configuration. In a
  /// directory that holds this fork already it has no effect.
  std::string fork = {};
};

/// Trains on all ranks (collective) and returns how the run ended: done, preempted or user_stopped (a
/// checkpoint is written in each case). Throws the same Error on every rank. Resolves `config` by resolve().
ExitCode train(Session& session, Config config, const RunOptions& options);

/// The part of train() before the first step, without writing a file. Calls show() on every rank with the
/// configuration of the run, then logs the actions of a start. Collective. Throws like train().
void dry_run(Session& session, Config config, const RunOptions& options,
             const std::function<void(const Config&)>& show);

}  // namespace lockstep::train
