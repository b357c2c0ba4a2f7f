// The configuration of a run: what an INI file, --set and the defaults come to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "data/config.h"
#include "ddp/config.h"
#include "lockstep/base/option.h"
#include "lockstep/models/registry.h"
#include "lockstep/optim/registry.h"

namespace lockstep::train {

using checkpoint::CheckpointConfig;
using data::DataConfig;
using ddp::DdpConfig;
using models::ModelConfig;
using optim::EmaConfig;
using optim::OptimizerConfig;
using optim::ParamGroup;

struct TrainConfig {
  std::int64_t steps = 0;
  double epochs = 0;  ///< in place of steps, until the data is known
  std::int64_t global_batch = 0;
  int shards = 0;  ///< 0: the world size of the run's first start
  int micro_batches = 1;
  std::uint64_t seed = 1;
  std::string precision = "fp32";
  std::string bf16_fallback = "refuse";
  bool reproducible = false;
  std::string device = "auto";
  int threads = 1;
  std::string bind = "cores";
  std::int64_t eval_every = 0, eval_samples = 0;
  std::string init;
  double label_smoothing = 0;
  std::vector<std::string> frozen;
  std::string cuda_graph = "auto";

  static std::vector<Option<TrainConfig>> options();
};

struct FaultConfig {
  double hang_timeout_s = 300;  ///< 0: wait forever
  bool signal_report = false;

  static std::vector<Option<FaultConfig>> options();
};

struct LogConfig {
  std::int64_t every = 10;
  std::string trace;

  static std::vector<Option<LogConfig>> options();
};

struct Config {
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  EmaConfig ema;
  DdpConfig ddp;
  CheckpointConfig checkpoint;
  FaultConfig fault;
  LogConfig log;
};

/// Reads an INI file and the --set overrides ("section.key=value"). Values may stand in quotes (option.h).
/// Throws UsageError naming file, key and value: unknown keys (with the nearest known one), values out of
/// range, impossible combinations, what this build cannot do.
Config read_config(const std::string& path, const std::vector<std::string>& overrides);
/// The same from text; `origin` names it in errors.
Config parse_config(const std::string& text, const std::string& origin,
                    const std::vector<std::string>& overrides = {});
/// The same of a text that a run directory or a checkpoint holds, maybe of another version: a key that this
/// one does not know is passed over if its value is empty, 0 or false, and else an error.
Config parse_stored_config(const std::string& text, const std::string& origin);

/// Every key with its resolved value, as an INI file that read_config takes.
std::string to_text(const Config& config);

/// The keys whose values differ although a resume may not change them: "key: run has A, asked for B" each.
std::vector<std::string> forbidden_changes(const Config& run, const Config& asked);

/// A key whose value a resumed run has changed.
struct KeyChange {
  std::string key, before, now;
};
std::vector<KeyChange> changes(const Config& run, const Config& asked);

/// One line a key: name, default, meaning, what it may be (lockstep train --help-keys).
std::string describe_keys();
/// The same as a section of a manual page (man 7 man).
std::string describe_keys_for_man();

}  // namespace lockstep::train
