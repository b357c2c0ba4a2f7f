#include "train/workload.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/resources.h"
#include "base/text.h"
#include "checkpoint/weights/gpt2.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/data/images.h"
#include "lockstep/data/text.h"
#include "lockstep/nn/module.h"
#include "lockstep/optim/registry.h"

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
  return {.like = dynamic_cast<const data::Images*>(train)};
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
  const data::Dataset* const eval = whole_eval();
  const std::int64_t samples = config.train.eval_samples;
  if (!eval || samples == 0 || samples >= eval->size()) return;
  // A draw of its own: neither the epochs of training nor the split follow it.
  const std::uint64_t seed = mix_bits(config.train.seed ^ purpose_of("eval_samples"));
  eval_part_.emplace(*eval, 0, samples, data::Permutation(eval->size(), seed, 0));
}

std::string DataSets::tokenizer() const {
  for (const auto* const data : {train_.get(), eval_.get()}) {
    if (const auto* const text = dynamic_cast<const data::Text*>(data)) return text->tokenizer();
  }
  return "";
}

void check_tokenizer(const std::string& data_name, const std::string& data, const std::string& model_name,
                     const std::string& model) {
  if (data == model || data.empty() || model.empty()) return;
  throw DataError("{}: its tokens are of the tokenizer {}, but {} learned from tokens of {}", data_name,
                  quote(data), model_name, quote(model));
}

std::int64_t steps_of(const Config& config, std::int64_t samples) {
  if (config.train.epochs == 0) return config.train.steps;
  const double steps = std::ceil(config.train.epochs * static_cast<double>(samples) /
                                 static_cast<double>(config.train.global_batch));
  return static_cast<std::int64_t>(std::clamp(steps, 1.0, counts.high));
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

int shards_of(const Config& config, const comm::HostGroup& world) {
  return config.train.shards > 0 ? config.train.shards : world.size();
}

void check_shards(const Config& config, const comm::HostGroup& world) {
  const int shards = shards_of(config, world);
  if (config.train.global_batch % shards != 0) {
    throw UsageError("train.shards: {} shards do not divide train.global_batch = {}", shards,
                     config.train.global_batch);
  }
  if (const std::int64_t samples = config.train.global_batch / shards; config.train.micro_batches > samples) {
    throw UsageError("train.micro_batches = {}: a shard has {}; there can be no more pieces than that",
                     config.train.micro_batches, pluralized(samples, "sample"));
  }
  if (world.size() > shards) {
    throw UsageError(
        "{} are more than the {} of the run; start at most {} (or a new run with train.shards = {} or more)",
        pluralized(world.size(), "rank"), pluralized(shards, "shard"), pluralized(shards, "rank"),
        world.size());
  }
}

namespace {

std::unique_ptr<models::Model> make_model(const Config& config) {
  auto model = models::make_model(config.model, config.train.seed);
  nn::freeze(model->state(), config.train.frozen);
  optim::prepare_model(config.optimizer, model->state());
  return model;
}

}  // namespace

std::unique_ptr<models::Model> build_meta_model(const Config& config) {
  const MetaTensors meta;
  return make_model(config);
}

std::unique_ptr<models::Model> build_model(const Config& config) {
  double bytes = 0;
  const auto meta = build_meta_model(config);
  for (const Param* const param : meta->state().params) bytes += static_cast<double>(param->value.bytes());
  const std::optional<std::uint64_t> available = available_memory_bytes();
  if (available && bytes > static_cast<double>(*available)) {
    throw UsageError(
        "model.name = {}: the parameters take {:.0f} MiB, and this machine has {} left; make the model "
        "smaller",
        config.model.name, bytes / (1 << 20), *available >> 20);
  }
  return make_model(config);
}

void check_beside(const std::string& weights, const Config& config) {
  const models::ModelConfig& model = config.model;
  if (model.name != "gpt") return;
  checkpoint::check_gpt2_config(weights, {.heads = model.heads,
                                          .layers = model.layers,
                                          .channels = model.channels,
                                          .context = model.context,
                                          .vocab = model.vocab});
}

void check_same_updates(const Config& config, const kernels::Backend& backend, comm::HostGroup& world) {
  if (config.optimizer.name != "muon" || config.ddp.sharded_optimizer) return;
  const std::vector<std::string> all = world.all_gather_texts(backend.instruction_set());
  const auto other = std::ranges::find_if(all, [&](const std::string& text) { return text != all[0]; });
  if (other == all.end()) return;
  throw UsageError(
      "optimizer.name = muon: its matrix products have other bits on rank {} ({}) than on rank 0 ({}); set "
      "ddp.sharded_optimizer = true, where one rank updates a matrix for all, or start all ranks on machines "
      "of one kind",
      other - all.begin(), *other, all[0]);
}

std::unique_ptr<optim::Ema> build_ema(const Config& config, const ModelState& model,
                                      kernels::Backend& backend, const Partition* partition) {
  std::vector<optim::EmaProfile> profiles(config.ema.rates.begin(), config.ema.rates.end());
  for (const double width : config.ema.sigma_rel) profiles.push_back(optim::EmaProfile::power(width));
  if (profiles.empty()) return nullptr;
  optim::EmaOptions options{
      .warmup = {}, .buffers = optim::ema_buffers_named(config.ema.buffers), .partition = partition};
  if (!config.ema.warmup.empty()) {
    options.warmup = {config.ema.warmup[0], config.ema.warmup[1],
                      static_cast<std::int64_t>(config.ema.warmup[2])};
  }
  return std::make_unique<optim::Ema>(model, backend, std::move(profiles), options);
}

}  // namespace lockstep::train
