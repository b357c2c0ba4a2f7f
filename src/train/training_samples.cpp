#include "train/training_samples.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "base/files.h"
#include "base/output.h"
#include "base/progress.h"
#include "base/text.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "report/png.h"

namespace lockstep::train {
namespace {

constexpr std::string_view ema_prefix = "ema/";

/// "model", "ema/0.999", with numbers as profiles print them.
std::string checked_weights(const std::string& weights, const optim::Ema* ema) {
  if (weights == "model") return weights;
  std::vector<std::string> there{"model"};
  if (ema)
    for (const optim::EmaProfile& profile : ema->profiles())
      there.push_back(std::string(ema_prefix) + profile.name());
  if (weights.starts_with(ema_prefix)) {
    const std::string name =
        std::string(ema_prefix) + optim::EmaProfile::named(weights.substr(ema_prefix.size())).name();
    if (std::ranges::find(there, name) != there.end()) return name;
  }
  throw UsageError("sample.weights: {} is not averaged in this run; it has {}", quote(weights),
                   fmt::join(there, ", "));
}

}  // namespace

TrainingSamples::TrainingSamples(const Config& config, const TrainingSamplesParts& parts,
                                 const std::string& run)
    : parts_(parts), every_(config.sample.every), folder_(run + "/samples") {
  const SampleConfig& asked = config.sample;
  if (every_ == 0 && asked.features.empty()) return;
  Generative* task = nullptr;
  try {
    task = &generative(parts.task, config.task.name());
  } catch (const UsageError& error) {
    throw UsageError("sample.{}: {}", every_ > 0 ? fmt::format("every = {}", every_) : "features",
                     error.what());
  }
  const SampleClasses classes(asked.classes, parts.model, "sample.class");
  const SampleOptions options = sample_options(asked, parts.compute);
  try {
    task->check_sampling(parts.model, options);
  } catch (const UsageError& error) {
    throw UsageError("sample.{}", error.what());
  }
  const SampledParts sampled{parts.world, parts.backend, parts.model, *task};
  sampler_.emplace(sampled, options, classes, asked.count);
  if (every_ > 0) check_pictures(asked);
  if (asked.features.empty()) return;
  if (!parts.data.eval())
    throw UsageError("sample.features: nothing is evaluated; give data.eval or data.eval_fraction");
  features_ = std::make_unique<FeatureExtractor>(config, parts.data.range(), parts.world, parts.backend);
  compared_.emplace(sampled, options, classes, asked.features_count,
                    [this](const Tensor& samples) { return features_->of_samples(samples); });
}

void TrainingSamples::check_pictures(const SampleConfig& asked) {
  for (const std::string& weights : asked.weights) {
    weights_.push_back(checked_weights(weights, parts_.ema));
    if (std::ranges::count(weights_, weights_.back()) > 1)
      throw UsageError("sample.weights: names {} twice", quote(weights_.back()));
  }
  if (weights_.empty()) weights_.emplace_back("model");
  try {
    if (const Shape image = sampler_->known_shape(); image.rank() == 3)
      report::check_grid(asked.count, image);
  } catch (const UsageError& error) {
    throw UsageError("sample.count = {}: {}", asked.count, error.what());
  }
}

std::vector<MeasuredMetric> TrainingSamples::measured() {
  if (!features_) return {};
  return {{.metric = {.name = "frechet"}, .measure = [this] { return frechet(); }}};
}

double TrainingSamples::frechet() {
  const FeatureStatistics& data = features_->of_data();
  FeatureStatistics samples;
  compared_->run([&](std::int64_t, const Tensor& features) { samples.add(features); });
  double distance = 0;
  comm::run_on_all(parts_.world, [&] {
    if (parts_.world.rank() == 0) distance = frechet_distance(samples, data);
  });
  parts_.world.broadcast(&distance, sizeof distance, 0);
  return distance;
}

std::string TrainingSamples::file_part(const std::string& weights) {
  std::string part = weights;
  std::ranges::replace(part, '/', '-');
  return part;
}

bool TrainingSamples::after_step(std::int64_t step, RunLogs& logs, bool only_missing) {
  if (every_ == 0 || step == 0 || step % every_ != 0) return false;
  bool any = false;
  for (const std::string& weights : weights_) {
    const std::string path = fmt::format("{}/step-{:09}-{}.png", folder_, step, file_part(weights));
    int makes = 1;
    if (only_missing) {
      comm::run_on_all(parts_.world,
                       [&] { makes = parts_.world.rank() != 0 || !lockstep::exists(path) ? 1 : 0; });
      parts_.world.broadcast(&makes, sizeof makes, 0);
    }
    if (makes == 0) continue;
    make(step, weights, path, logs);
    any = true;
  }
  return any;
}

void TrainingSamples::make(std::int64_t step, const std::string& weights, const std::string& path,
                           RunLogs& logs) {
  progress::enter(progress::Phase::evaluation);
  std::unique_ptr<optim::Ema::SwappedIn> swapped;  // until the samples are made
  if (weights != "model")
    swapped.reset(new optim::Ema::SwappedIn(parts_.ema->swap_in(weights.substr(ema_prefix.size()))));
  Shape image;
  std::vector<float> values;
  sampler_->run([&](std::int64_t, const Tensor& samples) {
    image = Shape{samples.size(1), samples.size(2), samples.size(3)};
    values.insert(values.end(), samples.data<float>(), samples.data<float>() + samples.numel());
  });
  comm::run_on_all(parts_.world, [&] {
    if (parts_.world.rank() != 0) return;
    const std::string png = picture_of(values, image);
    report::Event event(step);
    event.add_image("samples/" + weights, png);
    logs.append(event);
    make_directories(folder_);
    write_text_atomically(path, png);
  });
}

}  // namespace lockstep::train
