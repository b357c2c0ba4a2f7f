// The configuration of a run: its sections, and how it is read from an INI file and --set.
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
using optim::EmaConfig;
using optim::OptimizerConfig;
using optim::ParamGroup;

struct TrainConfig {
  std::int64_t steps = 0;
  double epochs = 0;  ///< instead of steps; the size of the data turns them into steps
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
  double hang_timeout_s = 300;  ///< 0: no limit
  bool signal_report = false;

  static std::vector<Option<FaultConfig>> options();
};

struct LogConfig {
  std::int64_t every = 10;
  std::string trace;

  static std::vector<Option<LogConfig>> options();
};

struct Config {
  models::ModelConfig model;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  EmaConfig ema;
  DdpConfig ddp;
  CheckpointConfig checkpoint;
  FaultConfig fault;
  LogConfig log;
};

/// A key under its full name, "train.steps".
using Key = Option<Config>;

/// The keys of a configuration with this model (null: no model is named yet), in the order they are printed.
/// optimizer.group.N, of which there may be many, is not among them.
std::vector<Key> keys_of(const models::ModelType* model);

/// Reads an INI file and the --set overrides ("section.key=value"). Values may be quoted (option.h). `models`
/// are those that model.name can name. Throws UsageError naming file, key and value: unknown keys (with the
/// nearest known one), keys of another model, values out of range, impossible combinations.
Config read_config(const std::string& path, const std::vector<std::string>& overrides,
                   const models::Registry& models = models::built_in_models());
/// The same from text; `origin` names it in errors.
Config parse_config(const std::string& text, const std::string& origin,
                    const std::vector<std::string>& overrides = {},
                    const models::Registry& models = models::built_in_models());
/// The same for the text of a run directory or a checkpoint, which another version may have written: an
/// unknown key is ignored if its value is empty, 0 or false. Any other value is an error.
Config parse_stored_config(const std::string& text, const std::string& origin,
                           const models::Registry& models = models::built_in_models());

/// Every key with its resolved value, as an INI file that read_config takes.
std::string to_text(const Config& config);
/// "PATTERN LR_FACTOR DECAY_FACTOR", the value of optimizer.group.N.
std::string to_text(const ParamGroup& group);

}  // namespace lockstep::train
