#include "lockstep/train/workload.h"

#include <filesystem>

#include "lockstep/base/counted.h"
#include "lockstep/base/error.h"
#include "lockstep/data/images.h"
#include "lockstep/data/text.h"
#include "lockstep/nn/module.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/groups.h"
#include "lockstep/optim/sgd.h"

namespace lockstep::train {
namespace {

bool reads_text(const Config& config) { return config.model.name == "gpt"; }

std::unique_ptr<data::Dataset> open_data(const Config& config, std::int64_t classes,
                                         const std::vector<std::string>& paths,
                                         const data::ImagesOptions& options = {}) {
  if (!reads_text(config)) {
    auto images = std::make_unique<data::Images>(paths, options);
    images->check_labels(classes);
    return images;
  }
  auto text = std::make_unique<data::Text>(paths, config.model.context);
  if (text->vocabulary() > classes) {
    throw DataError("{}: a vocabulary of {} tokens; the model has model.vocab = {}", text->name(),
                    text->vocabulary(), classes);
  }
  return text;
}

/// A file that is not there, with the key that names it and what to do.
void check_present(const char* key, const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error) || error) return;
  throw DataError(
      "{}: {}: No such file; lockstep prepare makes data files, and paths count from the folder where "
      "lockstep is started",
      key, path);
}

/// Evaluation images are normalised as those the model was trained on.
data::ImagesOptions like(const data::Dataset* train) {
  const auto* const images = dynamic_cast<const data::Images*>(train);
  return images ? data::ImagesOptions{.mean = images->mean(), .deviation = images->deviation()}
                : data::ImagesOptions{};
}

}  // namespace

DataSets::DataSets(const Config& config, std::int64_t classes) {
  if (config.data.train.empty())
    throw UsageError("data.train: is missing; give an HDF5 data file (see lockstep prepare)");
  for (const std::string& path : config.data.train) check_present("data.train", path);
  if (!config.data.eval.empty()) check_present("data.eval", config.data.eval);
  train_ = open_data(config, classes, config.data.train);
  if (!config.data.eval.empty()) eval_ = open_data(config, classes, {config.data.eval}, like(train_.get()));
  if (config.data.eval_fraction > 0)
    split_.emplace(data::split(*train_, config.data.eval_fraction, config.train.seed));
}

DataSets::DataSets(const Config& config, std::int64_t classes, const std::string& eval_path) {
  if (!reads_text(config)) {
    try {
      train_ = open_data(config, classes, config.data.train);
    } catch (const Error& error) {  // the training data need not be here
      warning_ = fmt::format("{}: normalised by its own mean and deviation, not the training data's: {}",
                             eval_path, error.what());
    }
  }
  eval_ = open_data(config, classes, {eval_path}, like(train_.get()));
}

int shards_of(const Config& config, const comm::Communicator& world) {
  return config.train.shards > 0 ? config.train.shards : world.size();
}

void check_shards(const Config& config, const comm::Communicator& world) {
  const int shards = shards_of(config, world);
  if (config.train.global_batch % shards != 0) {
    throw UsageError("train.shards: {} shards do not divide train.global_batch = {}", shards,
                     config.train.global_batch);
  }
  if (world.size() > shards) {
    throw UsageError(
        "{} are more than the {} of the run; start at most {} (or a new run with train.shards = {} or more)",
        counted(world.size(), "rank"), counted(shards, "shard"), counted(shards, "rank"), world.size());
  }
}

std::unique_ptr<models::Model> build_model(const Config& config) {
  auto model = models::make_model(config.model, config.train.seed);
  nn::freeze(model->state(), config.train.frozen);
  return model;
}

std::unique_ptr<optim::Optimizer> build_optimizer(const Config& config, GradientSource& source) {
  std::vector<optim::ParamGroup> groups;
  for (const auto& [number, group] : config.optimizer.groups) {
    groups.push_back({group.pattern, group.lr_factor, group.decay_factor});
  }
  const OptimizerConfig& chosen = config.optimizer;
  const optim::Decay decay = optim::decay_named(chosen.decay);
  if (chosen.name == "sgd") {
    return std::make_unique<optim::Sgd>(source, optim::SgdOptions{.lr = chosen.lr,
                                                                  .momentum = chosen.momentum,
                                                                  .nesterov = chosen.nesterov,
                                                                  .weight_decay = chosen.weight_decay,
                                                                  .decay = decay,
                                                                  .groups = groups});
  }
  return std::make_unique<optim::AdamW>(source,
                                        optim::AdamWOptions{.lr = chosen.lr,
                                                            .betas = {chosen.betas[0], chosen.betas[1]},
                                                            .eps = chosen.eps,
                                                            .weight_decay = chosen.weight_decay,
                                                            .decay = decay,
                                                            .groups = groups});
}

std::unique_ptr<optim::Ema> build_ema(const Config& config, const ModelState& model,
                                      kernels::Backend& backend, const Sharding* sharding) {
  std::vector<optim::EmaProfile> profiles(config.ema.rates.begin(), config.ema.rates.end());
  for (const double width : config.ema.sigma_rel) profiles.push_back(optim::EmaProfile::power(width));
  if (profiles.empty()) return nullptr;
  optim::EmaOptions options{
      .warmup = {}, .buffers = optim::ema_buffers_named(config.ema.buffers), .sharding = sharding};
  if (!config.ema.warmup.empty()) {
    options.warmup = {config.ema.warmup[0], config.ema.warmup[1],
                      static_cast<std::int64_t>(config.ema.warmup[2])};
  }
  return std::make_unique<optim::Ema>(model, backend, std::move(profiles), options);
}

}  // namespace lockstep::train
