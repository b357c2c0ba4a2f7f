// A model rebuilt from the configuration in a checkpoint, with one of the checkpoint's groups of weights.
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

/// The group that --weights names: "model" or "ema/0.999", with numbers in their shortest form. UsageError
/// for any other text.
std::string weights_group(const std::string& weights);

/// DataError if another program wrote `file` (checkpoint::foreign_format); the error names lockstep convert
/// with `options`. Not collective.
void refuse_foreign(const std::string& file, const std::string& options = "");

class SavedModel {
 public:
  /// Adds --weights, --device and --precision.
  static void add_options(OptionSet& options);
  /// Returns the weights that a configuration prefers; empty: no preference.
  using PreferredWeights = std::function<std::string(const train::Config&)>;
  /// `values`: those of the options above. Default weights: `preferred` if the file has them, else
  /// FileIndex::default_weights(). Default device: cpu if the run's train.device is cpu, else auto. Default
  /// precision: the run's unless it is slower than float32, else fp32. Sets the session's backend.
  /// Collective, with the same errors on every rank: DataError if the file is not a complete checkpoint or
  /// lacks the weights, UsageError if it stores no configuration.
  SavedModel(const std::string& file, const po::variables_map& values, const Program& program,
             Session& session, const PreferredWeights& preferred = {});

  Model& model() { return *model_; }
  Task& task() { return *task_; }
  const train::Config& config() const { return config_; }
  /// What the checkpoint stores about the training data.
  const train::LearnedFrom& learned_from() const { return learned_from_; }
  /// Names of labels 0, 1, 2 ...; empty: they have none.
  std::vector<std::string> class_names() const;
  /// How the training data stores x, if the task takes x in [-1, 1].
  const std::optional<train::StoredRange>& range() const { return range_; }
  /// The tokenizer of the training text; its name is empty if unknown.
  const data::StoredTokenizer& tokenizer() const { return tokenizer_; }
  std::int64_t step() const { return step_; }
  std::uint64_t digest() const { return digest_; }         ///< of the checkpoint
  const std::string& weights() const { return weights_; }  ///< the group of weights
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
