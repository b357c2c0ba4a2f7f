// What a configuration builds: the model and the data it learns from.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/communicator.h"
#include "lockstep/data/dataset.h"
#include "lockstep/models/registry.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/optimizer.h"
#include "train/config.h"

namespace lockstep::train {

/// Training and evaluation data. `eval` may be none.
class DataSets {
 public:
  /// Opens what config.data names. Throws as the datasets do; DataError if a label or token is not below
  /// `classes`.
  DataSets(const Config& config, std::int64_t classes);
  /// One file as evaluation data, normalised as the training data of `config` is if that can be opened; if
  /// not, by its own mean and deviation, and `warning` says so.
  DataSets(const Config& config, std::int64_t classes, const std::string& eval_path);

  const data::Dataset& train() const {
    return split_ ? static_cast<const data::Dataset&>(split_->train) : *train_;
  }
  /// Null if there is none.
  const data::Dataset* eval() const { return eval_part_ ? &*eval_part_ : whole_eval(); }
  /// Of text; empty of images, and where the data file names none.
  std::string tokenizer() const;
  /// To be said once; empty if all is as the configuration has it.
  const std::string& warning() const { return warning_; }

 private:
  const data::Dataset* whole_eval() const { return split_ ? &split_->eval : eval_.get(); }

  std::unique_ptr<data::Dataset> train_, eval_;
  std::optional<data::Split> split_;
  std::optional<data::Subset> eval_part_;  // train.eval_samples
  std::string warning_;
};

/// train.steps, or as many as train.epochs passes through `samples` samples take, the last one full.
std::int64_t steps_of(const Config& config, std::int64_t samples);

/// DataError if the data of a language model were cut into tokens by another tokenizer than it learned from;
/// empty: not known.
void check_tokenizer(const std::string& data_name, const std::string& data, const std::string& model_name,
                     const std::string& model);

/// The shards of a new run: as configured, or one for each rank.
int shards_of(const Config& config, const comm::HostGroup& world);

/// UsageError if they do not divide the batch, or are fewer than the ranks.
void check_shards(const Config& config, const comm::HostGroup& world);

/// The configured model, its frozen parameters marked. UsageError if this machine cannot hold its parameters.
std::unique_ptr<models::Model> build_model(const Config& config);
/// The same of meta tensors: names and shapes only.
std::unique_ptr<models::Model> build_meta_model(const Config& config);

/// A file of weights for a gpt against config.json next to it; see checkpoint::check_gpt2_config.
void check_beside(const std::string& weights, const Config& config);

/// UsageError on every rank where each makes all updates of its own, and these would not have the same bits
/// everywhere. Collective.
void check_same_updates(const Config& config, const kernels::Backend& backend, comm::HostGroup& world);

/// None if neither rates nor widths are configured. partition: that of the source of gradients, or none.
std::unique_ptr<optim::Ema> build_ema(const Config& config, const ModelState& model,
                                      kernels::Backend& backend, const Partition* partition = nullptr);

}  // namespace lockstep::train
