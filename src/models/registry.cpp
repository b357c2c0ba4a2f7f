#include "lockstep/models/registry.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace lockstep::models {

// Each is defined at the end of its model's source.
void enter_mlp(Registry& registry);
void enter_resnet(Registry& registry);
void enter_gpt(Registry& registry);

const Registry& built_in_models() {
  static const Registry models = [] {
    Registry registry;
    enter_mlp(registry);
    enter_resnet(registry);
    enter_gpt(registry);
    return registry;
  }();
  return models;
}

std::string ModelConfig::value(std::string_view option) const {
  if (!type) return "";
  const auto row = std::ranges::find(type->options, option, &Option<ModelConfig>::name);
  return row == type->options.end() ? "" : row->get(*this);
}

std::vector<std::string> Registry::names() const {
  std::vector<std::string> names;
  for (const ModelType& type : types_) names.push_back(type.name);
  return names;
}

ModelConfig Registry::configure(const std::string& name) const {
  option::check_word(name, names());
  const auto type = std::ranges::find(types_, name, &ModelType::name);
  return {.type = &*type, .options = type->defaults};
}

std::unique_ptr<Model> make_model(const ModelConfig& config, std::uint64_t seed) {
  if (!config.type) throw UsageError("model.name is missing");
  return config.type->make(config.options, seed);
}

std::string summary(const ModelState& state) {
  const std::int64_t all = nn::count_parameters(state), frozen = all - nn::count_parameters(state, true);
  const std::string text =
      fmt::format("{} in {}", pluralized(all, "parameter"), pluralized(state.params.size(), "tensor"));
  return frozen == 0 ? text : fmt::format("{}, {} of them frozen", text, frozen);
}

}  // namespace lockstep::models
