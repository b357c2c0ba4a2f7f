// A model rebuilt from a checkpoint: by the configuration stored in it, with the weights asked for.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "lockstep/models/registry.h"
#include "lockstep/train/session.h"
#include "train/config.h"

namespace lockstep::cli {

/// The group that --weights means: "model", "ema/0.999" (numbers written the shortest way). UsageError on
/// anything else.
std::string weights_group(const std::string& weights);

/// DataError if `file`, which should be a checkpoint, is a .safetensors file: it points to lockstep convert,
/// with `options`. Not collective.
void refuse_safetensors(const std::string& file, const std::string& options = "");

class SavedModel {
 public:
  /// `weights`: "model", "ema/RATE" or "ema/sigma_rel=S"; none: FileIndex::default_weights(). `device`:
  /// "auto", "cpu" or "cuda"; none: cpu if the run was told so, else auto. `precision`: "fp32" or "bf16" (by
  /// conversion if need be); none: the run's where it is no slower than float32, else fp32. Collective; the
  /// same errors on every rank: DataError if the file is not a whole checkpoint or does not hold the weights,
  /// UsageError if it stores no configuration. Settles the session's backend.
  SavedModel(const std::string& file, const std::optional<std::string>& weights,
             const std::optional<std::string>& device, const std::optional<std::string>& precision,
             Session& session);

  models::Model& model() { return *model_; }
  const train::Config& config() const { return config_; }
  /// Of the text it learned from; empty where that is not known.
  const std::string& tokenizer() const { return tokenizer_; }
  std::int64_t step() const { return step_; }
  const std::string& weights() const { return weights_; }  ///< the group loaded
  DType compute() const { return compute_; }               ///< Pass::compute

 private:
  train::Config config_;
  std::unique_ptr<models::Model> model_;
  std::int64_t step_ = 0;
  std::string weights_, tokenizer_;
  DType compute_ = DType::float32;
};

}  // namespace lockstep::cli
