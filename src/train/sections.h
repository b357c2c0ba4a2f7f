// The sections of a configuration, except [model], [task] and [ddp], which are a model's, a task's and
// ddp::Options. Each has a struct of values, and describes its keys once, in options(); a section of a
// module's options and more keys contains the module's struct and its rows.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/option.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/data/dataset.h"
#include "lockstep/ddp/options.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/tasks/generative.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::train {

/// The allowed ends of data.range.
inline constexpr Range data_range = Range::from(-1e30, 1e30);

struct DataConfig {
  std::vector<std::string> train;              ///< data files, with optional weights (training_files())
  std::string eval;                            ///< data file; or
  double eval_fraction = 0;                    ///< held out of `train`, chosen by the seed
  std::string format;                          ///< empty: auto
  data::Registry::Choice kind;                 ///< of a format with a name, with its options; or none
  std::vector<std::string> fields, normalize;  ///< of arrays
  std::vector<double> range;                   ///< lowest and highest stored value of x; empty: by its type
  std::string balance, weights;                ///< fields that decide how often a sample is drawn
  bool shuffle = true;
  std::string documents = "cross";  ///< of text, or mask
  data::Augment augment;
  data::PictureOptions pictures;
  /// Not a key: what the folders contain (list_folders()); null: a data set looks itself.
  std::shared_ptr<const data::PictureListings> listings;
  int threads = 0;              ///< that read; 0: loader_threads()
  int ahead = 2;                ///< steps
  std::int64_t max_rows = 0;    ///< of a ragged field in a shard; 0: any number
  std::string memory = "auto";  ///< of a node, for data: memory_bytes()

  /// What `memory` says; auto: a quarter of this node's memory, or of the limit of its control group.
  std::int64_t memory_bytes() const;

  static std::vector<Option<DataConfig>> options();
};

struct TrainConfig {
  std::int64_t steps = 0;
  double epochs = 0;  ///< instead of steps; the size of the data turns them into steps
  std::int64_t global_batch = 0;
  std::string precision = "fp32";
  std::string bf16_fallback = "refuse";
  bool reproducible = false;
  std::string device = "auto";
  int threads = 1;
  std::string bind = "cores";
  std::int64_t eval_every = 0, eval_samples = 0, patience = 0;
  std::string init;
  double label_smoothing = 0;
  std::vector<std::string> frozen;
  bool frozen_statistics = false;

  static std::vector<Option<TrainConfig>> options();
};

/// [optimizer]: the algorithm with its keys, and the keys of every algorithm.
struct OptimizerConfig {
  static constexpr const char* usual = "adamw";  ///< the default of optimizer.name

  optim::Algorithm algorithm;
  optim::Schedule schedule;                 ///< of the learning rate
  double clip = 0;                          ///< maximal norm of the mean gradient; 0: any
  std::map<int, optim::ParamGroup> groups;  ///< optimizer.group.N

  /// The optimizer of a source, which must outlive it. Throws the UsageErrors of its constructor.
  std::unique_ptr<optim::Optimizer> make(GradientSource& source) const;
  /// All keys except `name` and the groups, whose names have a number. Null: without those of an algorithm.
  static std::vector<Option<OptimizerConfig>> options(const optim::Registry::Type* algorithm);
};

struct EmaConfig {
  std::vector<double> rates;      ///< constant decays
  std::vector<double> sigma_rel;  ///< widths of power-function EMAs
  optim::EmaOptions averages;     ///< their options
  std::string init = "weights";   ///< beginning of the EMA weights of a new run from a file: weights or file

  static std::vector<Option<EmaConfig>> options();
  void check() const;  ///< throws Misfit
};

struct CheckpointConfig {
  /// `every`: the trainer computes it from the time of steps.
  static constexpr std::int64_t auto_every = -1;

  std::int64_t every = auto_every;  ///< steps; 0: only at the end
  checkpoint::StoreOptions store;   ///< options of saves and loads

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

/// Samples during a run, and the defaults of lockstep sample.
/// How texts are continued (infer/generate.h).
struct GenerateOptions {
  std::int64_t tokens = 256;    ///< of each continuation, at most
  double temperature = 0.8;     ///< divides the logits; 0: always the most likely token
  std::int64_t top_k = 0;       ///< draws among the most likely tokens; 0: all
  double top_p = 1;             ///< draws among the most likely tokens that together have this probability
  std::int64_t vocabulary = 0;  ///< tokens from here on are never drawn; 0: all of the model's
  std::vector<std::int64_t> stop = {};  ///< tokens that end a text, and do not belong to it
  std::uint64_t seed = 1;
  DType compute = DType::float32;  ///< Pass::compute
};

struct SampleConfig {
  std::int64_t every = 0;  ///< steps; 0: never
  std::int64_t count = 64;
  std::string classes = "auto";  ///< key `class`: a number, all or none; auto: all, if the model has classes
  SampleOptions how;             ///< options of the sampler
  std::vector<std::string> weights;  ///< "model", "ema/0.999"; empty: model
  std::string features;              ///< checkpoint of a classifier; empty: no distances
  std::int64_t features_count = 2000;
  std::vector<std::string> prompts;  ///< that a language model continues; empty: a new line
  GenerateOptions continuation;      ///< of the prompts

  /// Of pictures, or of the texts of a language model.
  static std::vector<Option<SampleConfig>> options(bool texts = false);
};

struct LogConfig {
  std::int64_t every = 10;
  bool every_is_set = false;  ///< not a key: otherwise the log has at most one line a second
  std::string trace;
  bool tensorboard = true;
  std::int64_t histograms_every = 0;  ///< 0: never

  static std::vector<Option<LogConfig>> options();
};

}  // namespace lockstep::train
