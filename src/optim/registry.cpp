#include "lockstep/optim/adamw.h"
#include "lockstep/optim/lion.h"
#include "lockstep/optim/muon.h"
#include "lockstep/optim/sgd.h"

namespace lockstep::optim {

/// In a configuration, the default of weight_decay is 0.
void add_built_in(Registry& registry) {
  registry.add<AdamW>("adamw", {.weight_decay = 0});
  registry.add<Sgd>("sgd");
  registry.add<Muon>("muon", {.weight_decay = 0});
  registry.add<Lion>("lion");
}

namespace {

std::vector<bool> undivided_by(const Algorithm& algorithm, const ModelState& model) {
  const auto& undivided = algorithm.type->traits.undivided;
  return undivided ? undivided(algorithm.options, model.params)
                   : std::vector<bool>(model.params.size(), false);
}

}  // namespace

void prepare_model(const Algorithm& algorithm, const ModelState& model) {
  const std::vector<bool> undivided = undivided_by(algorithm, model);
  for (std::size_t i = 0; i < undivided.size(); ++i)
    if (undivided[i]) model.params[i]->undivided = true;
}

std::int64_t elements_of_state(const Algorithm& algorithm, const ModelState& model) {
  const auto& states = algorithm.type->traits.states;
  if (!states) return 0;
  const std::vector<bool> undivided = undivided_by(algorithm, model);
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < undivided.size(); ++i) {
    const Param& param = *model.params[i];
    if (param.trainable) elements += states(algorithm.options, undivided[i]) * param.value.numel();
  }
  return elements;
}

}  // namespace lockstep::optim
