// A model rebuilt from a checkpoint: by the configuration stored in it, with one of its groups of weights.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cli/verb.h"
#include "train/config.h"
#include "train/data_sets.h"

namespace lockstep::cli {

/// The group that --weights means: "model", "ema/0.999" (numbers in their shortest form). UsageError on
/// anything else.
std::string weights_group(const std::string& weights);

/// DataError if `file` holds weights as other programs write them (checkpoint::foreign_format); the text
/// names lockstep convert with `options`. Not collective.
void refuse_foreign(const std::string& file, const std::string& options = "");

class SavedModel {
 public:
  /// Adds --weights, --device and --precision.
  static void add_options(OptionSet& options);
  /// The weights that the configuration prefers; empty: none.
  using PreferredWeights = std::function<std::string(const train::Config&)>;
  /// `values`: of these options. Without --weights: those preferred, if the file has them, else
  /// FileIndex::default_weights(). Without --device: cpu if
  /// the run was restricted to it, else auto. Without --precision: the run's if it is not slower than
  /// float32, else fp32. Sets the session's backend. Collective; the same errors on every rank: DataError if
  /// the file is not a complete checkpoint or does not hold the weights, UsageError if it stores no
  /// configuration.
  SavedModel(const std::string& file, const po::variables_map& values, const Program& program,
             Session& session, const PreferredWeights& preferred = {});

  Model& model() { return *model_; }
  Task& task() { return *task_; }
  const train::Config& config() const { return config_; }
  /// Of the data it was trained on.
  const train::LearnedFrom& learned_from() const { return learned_from_; }
  /// How the data it was trained on stores x, if the task takes it in [-1, 1].
  const std::optional<train::StoredRange>& range() const { return range_; }
  /// Of the text it was trained on; without a name if not known.
  const data::StoredTokenizer& tokenizer() const { return tokenizer_; }
  std::int64_t step() const { return step_; }
  std::uint64_t digest() const { return digest_; }         ///< of the checkpoint
  const std::string& weights() const { return weights_; }  ///< the group loaded
  DType compute() const { return compute_; }               ///< Pass::compute

 private:
  train::Config config_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Task> task_;
  train::LearnedFrom learned_from_;
  std::optional<train::StoredRange> range_;
  std::int64_t step_ = 0;
  std::uint64_t digest_ = 0;
  std::string weights_;
  data::StoredTokenizer tokenizer_;
  DType compute_ = DType::float32;
};

}  // namespace lockstep::cli
