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
  for (const auto& [number, group] : config.groups) groups.push_back(group);
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

using namespace option;

std::vector<Option<OptimizerConfig>> OptimizerConfig::options() {
  using O = OptimizerConfig;
  const Range rate = Range::from(0, 1e38), fraction = Range::below(0, 1);
  Range momentum = fraction;
  momentum.word = "auto";
  momentum.word_value = O::momentum_by_algorithm;
  return {
      choice("name", &O::name, optimizer_names(), "optimization algorithm",
             {.peers = {"optim", "optimizer", "optimizer_type"}}),
      number("lr", &O::lr, Range::above(0, 1e38), "learning rate",
             {.may_change = true, .peers = {"learning_rate", "max_lr", "base_lr", "peak_lr"}}),
      number("min_lr", &O::min_lr, rate, "learning rate at the end of the schedule, at most optimizer.lr",
             {.may_change = true, .peers = {"end_lr", "lr_min", "eta_min"}}),
      numbers("betas", &O::betas, fraction, "adamw, muon: decay of AdamW's two moments",
              {.peers = {"beta1", "beta2", "adam_betas", "adam_beta1", "adam_beta2"}}),
      number("eps", &O::eps, Range::from(0, 1e6), "adamw, muon: added to the root of AdamW's second moment",
             {.peers = {"epsilon", "adam_epsilon"}}),
      number("weight_decay", &O::weight_decay, rate, "weight decay",
             {.may_change = true, .peers = {"wd", "l2"}}),
      choice("decay", &O::decay, {"matrices", "all"},
             "which parameters decay; default: matrices for adamw and muon, all for sgd"),
      number("momentum", &O::momentum, momentum, "sgd, muon: momentum; auto: 0 for sgd, 0.95 for muon"),
      choice("nesterov", &O::nesterov, {"true", "false"},
             "sgd, muon: Nesterov momentum; default: true for muon, false for sgd"),
      texts("muon", &O::muon,
            "muon: name patterns of the matrices that it takes, AdamW the rest; default: those that are "
            "neither embeddings nor output heads",
            {.peers = {"muon_params", "use_muon"}}),
      number(
          "clip", &O::clip, rate, "largest global gradient norm; 0: no clipping",
          {.may_change = true,
           .peers = {"grad_clip", "max_grad_norm", "gradient_clip", "gradient_clip_val", "clip_grad_norm"}}),
      choice(
          "schedule", &O::schedule, {"constant", "cosine", "linear", "wsd", "step", "poly"},
          "schedule of the learning rate",
          {.may_change = true, .peers = {"scheduler", "lr_scheduler", "lr_schedule", "lr_scheduler_type"}}),
      number("warmup_steps", &O::warmup_steps, counts, "length of the linear warm-up",
             {.unit = "steps", .may_change = true, .peers = {"warmup", "warmup_iters", "lr_warmup_steps"}}),
      number("decay_steps", &O::decay_steps, counts,
             "wsd: length of the decay at the end, linear from lr to min_lr",
             {.unit = "steps",
              .may_change = true,
              .peers = {"num_decay_steps", "cooldown_steps", "lr_wsd_decay_iters"}}),
      numbers("milestones", &O::milestones, Range::from(1, 1e15),
              "step: the steps at which the rate is multiplied by gamma, in rising order",
              {.unit = "steps", .may_change = true, .peers = {"lr_steps", "lr_milestones"}}),
      number("gamma", &O::gamma, Range::above(0, 1), "step: factor of the rate at each milestone",
             {.may_change = true, .peers = {"lr_gamma", "decay_rate", "lr_decay_rate"}}),
      number("power", &O::power, Range::above(0, 100),
             "poly: power p of min_lr + (lr - min_lr) (1 - t)^p, t from 0 to 1",
             {.may_change = true, .peers = {"lr_power", "poly_power"}}),
  };
}

std::vector<Option<EmaConfig>> EmaConfig::options() {
  using E = EmaConfig;
  return {
      numbers("rates", &E::rates, Range::below(0, 1), "decay of each moving average of the weights",
              {.peers = {"rate", "ema", "ema_decay", "ema_rate", "ema_rates"}}),
      numbers("warmup", &E::warmup, Range::from(0, 1e15),
              "inv_gamma, power and update_after (steps) of a warm-up", {.peers = {"ema_warmup"}}),
      numbers("sigma_rel", &E::sigma_rel, {.low = 0, .high = 0.28, .low_open = true, .high_open = true},
              "widths of power-function averages (0.05 0.10); each checkpoint leaves a snapshot of them in "
              "RUN/ema for lockstep ema, at most 22 while the steps double"),
      choice("buffers", &E::buffers, {"copy", "average", "leave"},
             "buffers of EMA weights: a copy of the model's, their average, or none (the model's are used)"),
      choice("init", &E::init, {"weights", "file"},
             "what EMA weights of a new run start from, where train.init names a file: its weights, or its "
             "EMA weights"),
  };
}

}  // namespace lockstep::optim
