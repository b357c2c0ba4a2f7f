// The configuration of a run: what an INI file, --set and the defaults come to.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/models/registry.h"

namespace lockstep::train {

struct DataConfig {
  std::vector<std::string> train;  ///< HDF5 data files
  std::string eval;                ///< HDF5 data file; or
  double eval_fraction = 0;        ///< held out of `train`, chosen by the seed
  bool crop = false, flip = false;
};

struct TrainConfig {
  std::int64_t steps = 0;
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
  std::int64_t eval_every = 0;
  std::string init;
  double label_smoothing = 0;
  std::vector<std::string> frozen;
  std::string cuda_graph = "auto";
};

struct GroupConfig {
  std::string pattern;
  double lr_factor = 1, decay_factor = 1;
};

struct OptimizerConfig {
  std::string name = "adamw";
  double lr = 1e-3, min_lr = 0;
  std::vector<double> betas{0.9, 0.999};
  double eps = 1e-8, weight_decay = 0;
  std::string decay;  ///< "matrices" or "all"; empty: by algorithm
  double momentum = 0;
  bool nesterov = false;
  double clip = 0;  ///< 0: off
  std::string schedule = "constant";
  std::int64_t warmup_steps = 0;
  std::map<int, GroupConfig> groups;
};

struct EmaConfig {
  std::vector<double> rates;
  std::vector<double> warmup;  ///< none, or inv_gamma, power, update_after
  std::vector<double> sigma_rel;
  std::string buffers = "copy";
};

struct DdpConfig {
  double bucket_mb = 25, first_bucket_mb = 1;
  std::string unused = "error", reduce_dtype = "fp32", hook = "none";
  bool sharded_optimizer = false;
  std::int64_t check_every = 0;
  std::string mode = "overlapped";
};

struct CheckpointConfig {
  std::int64_t every = 0;  ///< 0: only at the end
  int keep = 2;
  std::string keep_best;
  bool async = false;
  std::string io = "posix", load = "strict";
  bool narrow = false;
};

struct FaultConfig {
  double hang_timeout_s = 300;  ///< 0: wait for ever
  bool signal_report = false;
};

struct LogConfig {
  std::int64_t every = 10;
  std::string trace;
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

/// Reads an INI file and the --set overrides ("section.key=value"). Throws UsageError naming file, key and
/// value: unknown keys (with the nearest known one), bad numbers, impossible combinations, what this build
/// cannot do.
Config read_config(const std::string& path, const std::vector<std::string>& overrides);
/// The same from text, as stored in a checkpoint; `origin` names it in errors.
Config parse_config(const std::string& text, const std::string& origin,
                    const std::vector<std::string>& overrides = {});

/// Every key with its resolved value, as an INI file that read_config takes.
std::string to_text(const Config& config);

/// The keys whose values differ although a resume may not change them: "key: run has A, asked for B" each.
std::vector<std::string> forbidden_changes(const Config& run, const Config& asked);

/// One line a key: name, default, meaning (lockstep train --help-keys).
std::string describe_keys();

}  // namespace lockstep::train
