#include "train/run/training_samples.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "base/files.h"
#include "base/progress.h"
#include "base/text.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/tasks/built_in.h"
#include "report/event.h"
#include "report/png.h"

namespace lockstep::train {
namespace {

constexpr std::string_view ema_prefix = "ema/";

/// "model", "ema/0.999", with the numbers of profile names.
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
  throw UsageError("sample.weights: {} is not averaged in this run; it has {}{}", quote(weights),
                   fmt::join(there, ", "),
                   weights.find(',') == weights.npos ? "" : "; values of a list are separated by blanks");
}

}  // namespace

TrainingSamples::TrainingSamples(const Config& config, const TrainingSamplesParts& parts,
                                 const std::string& run)
    : parts_(parts), every_(config.sample.every), folder_(run + "/samples") {
  const SampleConfig& samples_config = config.sample;
  if (every_ == 0 && samples_config.features.empty()) return;
  if (config.task.options_of<tasks::Language>()) {
    prepare_texts(config);
    return;
  }
  Generative* task = nullptr;
  try {
    task = &generative(parts.task, config.task.name());
  } catch (const UsageError& error) {
    throw UsageError("sample.{}: {}", every_ > 0 ? fmt::format("every = {}", every_) : "features",
                     error.what());
  }
  const SampleClasses classes(samples_config.classes, parts.model, "sample.class");
  SampleOptions options = samples_config.how;
  options.compute = parts.compute;
  try {
    task->check_sampling(parts.model, options);
    classes.check_guidance(options);
  } catch (const UsageError& error) {
    throw UsageError("sample.{}", error.what());
  }
  const SampledParts sampled{parts.world, parts.backend, parts.model, *task};
  sampler_.emplace(sampled, options, classes, samples_config.count);
  check_weights(samples_config);
  if (every_ > 0) check_pictures(samples_config);
  if (samples_config.features.empty()) return;
  if (!parts.data.eval())
    throw UsageError("sample.features: nothing is evaluated; give data.eval or data.eval_fraction");
  features_ = std::make_unique<FeatureExtractor>(config, parts.data.range(), sampler_->known_shape(),
                                                 parts.world, parts.backend);
  compared_.emplace(sampled, options, classes, samples_config.features_count,
                    [this](const Tensor& samples) { return features_->of_samples(samples); });
}

void TrainingSamples::prepare_texts(const Config& config) {
  check_weights(config.sample);
  const data::Tokens& tokens = parts_.data.train().meaning("x").tokens.value;
  const auto stored = data::StoredTokenizer::of(tokens.tokenizer, tokens.text);
  if (stored.name.empty())
    throw UsageError("sample.every = {}: the data does not name its tokenizer, so there are no texts",
                     every_);
  tokenizer_ = stored.make(config.registries->tokenizers, parts_.data.train().name());
  std::vector<std::string> prompts = config.sample.prompts;
  if (prompts.empty()) prompts.emplace_back("\n");
  for (const std::string& prompt : prompts) {
    prompts_.push_back(tokenizer_->encode(prompt));
    if (prompts_.back().empty()) throw UsageError("sample.prompts: one is empty");
  }
  if (tokenizer_->vocabulary() > parts_.model.classes())
    throw UsageError("sample.every = {}: the tokenizer of {} has {} tokens, but model.vocab = {}", every_,
                     parts_.data.train().name(), tokenizer_->vocabulary(), parts_.model.classes());
  text_options_ = config.sample.continuation;
  if (tokenizer_->end_of_document() >= 0) text_options_.stop = {tokenizer_->end_of_document()};
  text_options_.vocabulary = tokenizer_->vocabulary();
  text_options_.compute = parts_.compute;
}

void TrainingSamples::check_weights(const SampleConfig& samples_config) {
  for (const std::string& weights : samples_config.weights) {
    weights_.push_back(checked_weights(weights, parts_.weights.ema()));
    if (std::ranges::count(weights_, weights_.back()) > 1)
      throw UsageError("sample.weights: names {} twice", quote(weights_.back()));
  }
  if (weights_.empty()) weights_.emplace_back("model");
}

void TrainingSamples::check_pictures(const SampleConfig& samples_config) {
  try {
    if (const Shape image = sampler_->known_shape(); image.rank() == 3)
      report::check_grid(samples_config.count, image);
  } catch (const UsageError& error) {
    throw UsageError("sample.count = {}: {}", samples_config.count, error.what());
  }
}

std::vector<MeasuredMetric> TrainingSamples::metrics() {
  if (!features_) return {};
  return {{.metric = {.name = "frechet"},
           .measure = [this](const EvaluationWatch& watch) { return frechet(watch); }}};
}

std::optional<double> TrainingSamples::frechet(const EvaluationWatch& watch) {
  // The first time, half of the work is for the data.
  const double before = features_->has_data() ? 0 : 0.5;
  const FeatureStatistics* const data = features_->of_data(watch.part(0, before));
  if (!data) return std::nullopt;
  FeatureStatistics samples;
  const auto take = [&](std::int64_t, const Tensor& features) { samples.add(features); };
  if (!compared_->run(take, watch.part(before, 1))) return std::nullopt;
  double distance = 0;
  comm::run_on_all(parts_.world, [&] {
    if (parts_.world.rank() == 0) distance = frechet_distance(samples, *data);
  });
  parts_.world.broadcast(&distance, sizeof distance, 0);
  return distance;
}

std::string TrainingSamples::file_part(const std::string& weights) {
  std::string part = weights;
  std::ranges::replace(part, '/', '-');
  return part;
}

bool TrainingSamples::after_step(std::int64_t step, RunLogs& logs, const EvaluationWatch& watch,
                                 bool only_missing) {
  if (!due_after(step)) return true;
  for (const std::string& weights : weights_) {
    const std::string path =
        fmt::format("{}/step-{:09}-{}.{}", folder_, step, file_part(weights), tokenizer_ ? "txt" : "png");
    const std::string tag = "samples/" + weights;
    int makes = 1;
    if (only_missing) {
      comm::run_on_all(parts_.world, [&] {
        if (parts_.world.rank() != 0 || !lockstep::exists(path)) return;
        makes = 0;
        if (!tokenizer_)
          logs.append_missing_image(step, tag, path);  // a kill may have happened between the two
      });
      parts_.world.broadcast(&makes, sizeof makes, 0);
    }
    if (makes == 0) continue;
    progress::enter(progress::Phase::evaluation);
    std::optional<SampledPicture> picture;
    {
      const bool averaged = weights.starts_with(ema_prefix);
      const WeightsInUse::Held held(parts_.weights, averaged ? weights.substr(ema_prefix.size()) : "");
      if (tokenizer_) {
        const std::uint64_t mine = watch.requests ? watch.requests() : 0;
        if (watch.act && !watch.act(comm::bits_of_any(parts_.world, mine), 0)) return false;
        comm::run_on_all(parts_.world, [&] {
          if (parts_.world.rank() == 0) record_texts({step, tag, path}, logs, only_missing);
        });
        continue;
      }
      picture = picture_of(*sampler_, watch);
    }
    if (!picture) return false;
    comm::run_on_all(parts_.world, [&] {
      if (parts_.world.rank() == 0) record({step, tag, path}, *picture, logs, only_missing);
    });
  }
  return true;
}

void TrainingSamples::record_texts(const PicturePlace& place, RunLogs& logs, bool only_missing) {
  std::string all;
  try {
    all = texts();
  } catch (const TrainingError& error) {
    logs.warn_once(
        fmt::format("sample.every: {}: {}; its texts are left out (said once)", place.tag, error.what()));
    return;
  }
  if (!logs.write_file(place.path, all) || only_missing) return;
  report::Event event(place.step);
  event.add_text(place.tag, all);
  logs.append(event);
}

std::string TrainingSamples::texts() {
  std::string all;
  for (std::size_t first = 0; first < prompts_.size(); first += prompts_at_once) {
    const auto some = std::span(prompts_).subspan(first, std::min(prompts_at_once, prompts_.size() - first));
    const std::vector<Tokens> texts = generate(parts_.model, parts_.backend, some, first, text_options_,
                                               [](std::size_t, std::int64_t) { progress::tick(); });
    for (std::size_t i = 0; i < some.size(); ++i)
      all += tokenizer_->decode(some[i]) + tokenizer_->decode(texts[i]) + "\n\n";
  }
  return all;
}

void TrainingSamples::record(const PicturePlace& place, const SampledPicture& picture, RunLogs& logs,
                             bool only_missing) {
  if (picture.not_finite) {
    logs.warn_once(
        fmt::format("sample.every: sample {} of {} is not finite; a picture with such samples is left out "
                    "(said once)",
                    *picture.not_finite, place.tag));
    return;
  }
  const bool written =
      logs.write_file(place.path, picture.png);  // first, as TensorBoard's picture is that of the file
  if (only_missing) {
    if (written) logs.append_missing_image(place.step, place.tag, place.path);
    return;
  }
  report::Event event(place.step);
  event.add_image(place.tag, picture.png);
  logs.append(event);
}

}  // namespace lockstep::train
