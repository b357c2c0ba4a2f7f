// The sections of a configuration, but for [model], [optimizer] and [ema], which belong to the registries of
// models and optimizers. Each has a struct of values, and describes its keys once, in options().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/option.h"

namespace lockstep::train {

/// What the ends of data.range may be.
inline constexpr Range data_range = Range::from(-1e30, 1e30);

struct DataConfig {
  std::vector<std::string> train;              ///< data files, each perhaps with a weight (training_files())
  std::string eval;                            ///< data file; or
  double eval_fraction = 0;                    ///< held out of `train`, chosen by the seed
  std::string format;                          ///< empty: auto
  std::vector<std::string> fields, normalize;  ///< of arrays
  std::vector<double> range;                   ///< lowest and highest stored value of x; empty: by its type
  bool crop = false, flip = false;

  static std::vector<Option<DataConfig>> options();
};

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

struct DdpConfig {
  double bucket_mb = 25, first_bucket_mb = 1;
  std::string unused = "error", reduce_dtype = "fp32";
  bool sharded_optimizer = false;
  std::int64_t check_every = 0;
  std::string mode = "overlapped";

  static std::vector<Option<DdpConfig>> options();
};

struct CheckpointConfig {
  /// `every`: found out by the trainer from how long steps take.
  static constexpr std::int64_t auto_every = -1;

  std::int64_t every = auto_every;  ///< steps; 0: only at the end
  int keep = 2;
  std::string keep_best;
  bool async = false;
  std::string load = "strict";
  bool narrow = false;

  static std::vector<Option<CheckpointConfig>> options();
};

struct FaultConfig {
  double hang_timeout_s = 300;  ///< 0: no limit
  bool signal_report = false;

  static std::vector<Option<FaultConfig>> options();
};

struct ReportConfig {
  bool write = true;

  static std::vector<Option<ReportConfig>> options();
};

/// Samples that a run makes of itself, and what lockstep sample does by default.
struct SampleConfig {
  std::int64_t every = 0;  ///< steps; 0: never
  std::int64_t count = 64;
  std::string classes =
      "auto";  ///< key `class`: a number, all or none; auto: all, of a model that takes classes
  std::string sampler = "ddpm", steps;
  double eta = 0, guidance = 1;
  std::vector<std::string> weights;  ///< "model", "ema/0.999"; empty: model
  std::uint64_t seed = 1;
  std::string features;  ///< checkpoint of a classifier; empty: no distances
  std::int64_t features_count = 2000;

  static std::vector<Option<SampleConfig>> options();
};

struct LogConfig {
  std::int64_t every = 10;
  std::string trace;
  bool tensorboard = true;
  std::int64_t histograms_every = 0;  ///< 0: never

  static std::vector<Option<LogConfig>> options();
};

}  // namespace lockstep::train
