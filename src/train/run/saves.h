// The checkpoints of a run that trains: when one is due, its content, and its duration.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "lockstep/checkpoint/run_directory.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/train/time_limit.h"
#include "train/config.h"
#include "train/data_sets.h"
#include "train/run/outputs.h"

namespace lockstep::train {

/// The parts of a checkpoint's state, which outlive the saves.
struct SavedParts {
  Model& model;
  optim::Optimizer& optimizer;
  optim::Ema* ema;  ///< null: there is none
  Task& task;
  const DataSets& data;
  const ddp::DataParallel& replicas;
};

class Saves {
 public:
  /// config: receives the choice for checkpoint.every = auto.
  Saves(Config& config, checkpoint::RunDirectory& run, comm::HostGroup& world, const SavedParts& parts,
        checkpoint::StoreOptions options);

  checkpoint::Store& store() { return store_; }
  /// The state of training, for a load or a save.
  checkpoint::StateDict contents() const;

  bool due_after(std::int64_t step) const;
  /// Whether the newest checkpoint has this step.
  bool has(std::int64_t step) const { return saved_ == step; }
  /// The run begins at this step, which has a checkpoint; `changes`: of the configuration, by all starts.
  void begin_at(std::int64_t step, bool saved, std::string changes);

  /// Saves the state after `step`, unless it is saved already. metrics: of the evaluation of these weights,
  /// if it came first. Collective.
  void save(std::int64_t step, Outputs& outputs, const std::map<std::string, double>& metrics = {});
  /// After each step, with the requests of all ranks and the time of the step: advances the pending save, and
  /// chooses checkpoint.every. Collective.
  void after_step(const ddp::Requests& of_any, double step_ms, Outputs& outputs);
  /// Waits until the pending save is on storage. Collective.
  void finish() { store_.finish(); }

  /// Sets the state of this rank's writer for the other ranks.
  void report(ddp::Requests& requests) const;
  void advance(const ddp::Requests& of_any) {
    store_.advance({.writing = of_any.saving, .failed = of_any.save_failed});
  }

  /// Whether to stop now, so that one more save ends before the limit of the job.
  bool limit_is_near() const { return time_limit_.is_up(parameter_bytes_); }

 private:
  void choose_interval(double step_ms, Outputs& outputs);

  Config& config_;
  checkpoint::RunDirectory& run_;
  comm::HostGroup& world_;
  SavedParts parts_;
  checkpoint::Store store_;
  TimeLimit time_limit_;
  std::int64_t parameter_bytes_ = 0;  // of the whole model
  std::int64_t saved_ = -1;           // step of the newest checkpoint
  std::string changes_;
  Stopwatch since_save_;         // since the last save began
  bool noted_wait_ = false;      // for an asynchronous save, when the next was due
  std::vector<double> step_ms_;  // of the first steps, while checkpoint.every is auto
};

}  // namespace lockstep::train
