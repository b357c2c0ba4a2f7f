#include "lockstep/models/registry.h"

#include <fmt/format.h>

#include "base/text.h"

namespace lockstep::models {

// Each is defined at the end of its model's source.
void register_mlp(Registry& registry);
void register_resnet(Registry& registry);
void register_gpt(Registry& registry);
void register_llama(Registry& registry);
void register_unet(Registry& registry);
void register_vit(Registry& registry);
void register_series(Registry& registry);
void register_cosmoflow(Registry& registry);

void add_built_in(Registry& registry) {
  register_mlp(registry);
  register_resnet(registry);
  register_gpt(registry);
  register_llama(registry);
  register_unet(registry);
  register_vit(registry);
  register_series(registry);
  register_cosmoflow(registry);
}

const Registry& built_in_models() {
  static const Registry models = [] {
    Registry registry;
    add_built_in(registry);
    return registry;
  }();
  return models;
}

Var Model::operator()(Tape& tape, const Batch& batch) {
  output_.reset();
  Var output = forward(tape, batch);
  if (!tape.pass().training) output_ = output;
  return output;
}

Var Model::take_output() {
  if (!output_)
    throw UsageError("the metrics of a task need the output of model(tape, batch), which was not called");
  return *std::exchange(output_, std::nullopt);
}

std::unique_ptr<Model> make_model(const ModelConfig& config, std::uint64_t seed) {
  if (!config.type) throw UsageError("model.name is missing");
  try {
    return config.make(seed);
  } catch (const UsageError& error) {
    const std::string what = error.what();
    if (what.starts_with("model.")) throw;
    throw UsageError("model.name = {}: {}", config.name(), what);
  }
}

std::string summary(const ModelState& state) {
  const std::int64_t all = nn::count_parameters(state), frozen = all - nn::count_parameters(state, true);
  const std::string text =
      fmt::format("{} in {}", pluralized(all, "parameter"), pluralized(state.params.size(), "tensor"));
  return frozen == 0 ? text : fmt::format("{}, {} of them frozen", text, frozen);
}

}  // namespace lockstep::models
