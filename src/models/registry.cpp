#include "lockstep/models/registry.h"

#include <array>

#include "lockstep/base/counted.h"
#include "lockstep/base/names.h"
#include "models/gpt.h"
#include "models/mlp.h"
#include "models/resnet.h"

namespace lockstep::models {
namespace {

/// A key with a number or a list of numbers; a single number is a list of one, 0 an empty list.
struct Key {
  const char* name;
  std::vector<std::int64_t> values;
};

std::vector<std::int64_t> given(std::int64_t value) {
  return value == 0 ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{value};
}

void require_given(const std::string& model, const Key& key) {
  if (key.values.empty()) throw UsageError("model.{} is missing; {} needs it", key.name, model);
  for (const std::int64_t value : key.values) {
    if (value < 1) throw UsageError("model.{} = {} must be at least 1", key.name, value);
  }
}

void require_absent(const std::string& model, const Key& key) {
  if (!key.values.empty())
    throw UsageError("model.{} = {} is no key of {}; remove it", key.name, key.values.front(), model);
}

void check_keys(const ModelConfig& config) {
  const auto check = [&](const char* model, std::initializer_list<Key> keys) {
    for (const Key& key : keys)
      config.name == model ? require_given(model, key) : require_absent(config.name, key);
  };
  check("mlp", {{"sizes", config.sizes}});
  check("resnet", {{"blocks", config.blocks},
                   {"width", given(config.width)},
                   {"in_channels", given(config.in_channels)},
                   {"classes", given(config.classes)}});
  check("gpt", {{"layers", given(config.layers)},
                {"heads", given(config.heads)},
                {"channels", given(config.channels)},
                {"context", given(config.context)},
                {"vocab", given(config.vocab)}});
}

void check_options(const ModelConfig& config) {
  if (config.batch_norm != "plain" && config.batch_norm != "sync")
    throw UsageError("model.batch_norm = {} is unknown; plain or sync", config.batch_norm);
  if (config.batch_norm == "sync" && config.name != "resnet")
    throw UsageError("model.batch_norm = sync: {} has no batch norm; remove it", config.name);
  if (config.stem != "3x3" && config.stem != "7x7")
    throw UsageError("model.stem = {} is unknown; 3x3 or 7x7", config.stem);
  if (config.stem != "3x3" && config.name != "resnet")
    throw UsageError("model.stem = {}: {} has no stem; remove it", config.stem, config.name);
  if (!(config.dropout >= 0 && config.dropout < 1))
    throw UsageError("model.dropout = {} is not in [0, 1)", config.dropout);
  if (config.dropout > 0 && config.name == "resnet")
    throw UsageError("model.dropout = {}: resnet has no dropout; remove it", config.dropout);
  if (config.recompute && config.name == "mlp")
    throw UsageError("model.recompute = true: mlp has no blocks to compute again; remove it");
}

void check_fit(const ModelConfig& config) {
  constexpr std::size_t most_stages = 16;
  if (config.name == "mlp" && config.sizes.size() < 2)
    throw UsageError("model.sizes = {} names one width; give at least the input's and the output's",
                     config.sizes.front());
  if (config.name == "resnet" && config.blocks.size() > most_stages)
    throw UsageError("model.blocks names {} stages; at most {}", config.blocks.size(), most_stages);
  if (config.name == "gpt" && config.channels % config.heads != 0)
    throw UsageError("model.heads = {} does not divide model.channels = {}", config.heads, config.channels);
}

}  // namespace

std::span<const std::string> model_names() {
  static const std::array<std::string, 3> names{"mlp", "resnet", "gpt"};
  return names;
}

std::unique_ptr<Model> make_model(const ModelConfig& config, std::uint64_t seed) {
  if (config.name.empty()) throw UsageError("model.name is missing; mlp, resnet or gpt");
  if (config.name != "mlp" && config.name != "resnet" && config.name != "gpt") {
    const std::string nearest = nearest_name(config.name, model_names());
    throw UsageError("model.name = {} is unknown; {}", config.name,
                     nearest.empty() ? std::string("mlp, resnet or gpt") : "did you mean '" + nearest + "'?");
  }
  check_keys(config);
  check_options(config);
  check_fit(config);
  if (config.name == "mlp") return std::make_unique<Mlp>(config, seed);
  if (config.name == "resnet") return std::make_unique<Resnet>(config, seed);
  return std::make_unique<Gpt>(config, seed);
}

std::string summary(const ModelState& state) {
  const std::int64_t all = nn::count_parameters(state), frozen = all - nn::count_parameters(state, true);
  const std::string text =
      fmt::format("{} in {}", counted(all, "parameter"), counted(state.params.size(), "tensor"));
  return frozen == 0 ? text : fmt::format("{}, {} of them frozen", text, frozen);
}

}  // namespace lockstep::models
