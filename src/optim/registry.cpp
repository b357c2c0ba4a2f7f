#include "lockstep/optim/registry.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/muon.h"
#include "lockstep/optim/sgd.h"

namespace lockstep::optim {
namespace {

std::vector<ParamGroup> groups_of(const OptimizerConfig& config) {
  std::vector<ParamGroup> groups;
  for (const auto& [number, group] : config.groups)
    groups.push_back({group.pattern, group.lr_factor, group.decay_factor});
  return groups;
}

std::unique_ptr<Optimizer> make_adamw(const OptimizerConfig& config, GradientSource& source) {
  return std::make_unique<AdamW>(source, AdamWOptions{.lr = config.lr,
                                                      .betas = {config.betas[0], config.betas[1]},
                                                      .eps = config.eps,
                                                      .weight_decay = config.weight_decay,
                                                      .decay = decay_named(config.decay),
                                                      .groups = groups_of(config)});
}

std::unique_ptr<Optimizer> make_sgd(const OptimizerConfig& config, GradientSource& source) {
  return std::make_unique<Sgd>(source, SgdOptions{.lr = config.lr,
                                                  .momentum = config.momentum,
                                                  .nesterov = config.nesterov == "true",
                                                  .weight_decay = config.weight_decay,
                                                  .decay = decay_named(config.decay),
                                                  .groups = groups_of(config)});
}

std::unique_ptr<Optimizer> make_muon(const OptimizerConfig& config, GradientSource& source) {
  return std::make_unique<Muon>(source, MuonOptions{.lr = config.lr,
                                                    .momentum = config.momentum,
                                                    .nesterov = config.nesterov == "true",
                                                    .betas = {config.betas[0], config.betas[1]},
                                                    .eps = config.eps,
                                                    .weight_decay = config.weight_decay,
                                                    .decay = decay_named(config.decay),
                                                    .patterns = config.muon,
                                                    .groups = groups_of(config)});
}

/// What the algorithms differ in. Those whose name a configuration has.
struct Algorithm {
  const char* name;
  const char *decay, *nesterov;  ///< where a configuration says nothing
  double momentum;
  std::unique_ptr<Optimizer> (*make)(const OptimizerConfig&, GradientSource&);
  /// Tensors of a parameter's shape that are kept of it.
  int (*states)(const OptimizerConfig&);
};

constexpr Algorithm algorithms[] = {
    {"adamw", "matrices", "false", 0, make_adamw, [](const OptimizerConfig&) { return 2; }},
    {"sgd", "all", "false", 0, make_sgd,
     [](const OptimizerConfig& config) { return config.momentum > 0 ? 1 : 0; }},
    {"muon", "matrices", "true", 0.95, make_muon, [](const OptimizerConfig&) { return 2; }},
};

const Algorithm& algorithm_of(const OptimizerConfig& config) {
  const auto found =
      std::ranges::find(algorithms, config.name, [](const Algorithm& a) { return std::string(a.name); });
  if (found != std::end(algorithms)) return *found;
  throw UsageError("optimizer.name = {}: there is no such optimizer", config.name);
}

/// The parameters that Muon takes keep one tensor, its momentum.
std::vector<bool> by_muon(const OptimizerConfig& config, const ModelState& model) {
  if (config.name != "muon") return std::vector<bool>(model.params.size(), false);
  return taken_by_muon(model.params, config.muon);
}

}  // namespace

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const Algorithm& algorithm : algorithms) names.emplace_back(algorithm.name);
  return names;
}

void complete(OptimizerConfig& config) {
  const Algorithm& algorithm = algorithm_of(config);
  if (config.decay.empty()) config.decay = algorithm.decay;
  if (config.momentum == OptimizerConfig::momentum_by_algorithm) config.momentum = algorithm.momentum;
  if (config.nesterov.empty()) config.nesterov = algorithm.nesterov;
}

void prepare_model(const OptimizerConfig& config, const ModelState& model) {
  if (config.name == "muon") keep_whole_for_muon(model, config.muon);
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, GradientSource& source) {
  return algorithm_of(config).make(config, source);
}

std::int64_t elements_of_state(const OptimizerConfig& config, const ModelState& model) {
  const std::vector<bool> muon = by_muon(config, model);
  const std::int64_t states = algorithm_of(config).states(config);
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < model.params.size(); ++i) {
    if (model.params[i]->trainable) elements += (muon[i] ? 1 : states) * model.params[i]->value.numel();
  }
  return elements;
}

}  // namespace lockstep::optim
