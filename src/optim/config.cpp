#include "lockstep/optim/config.h"

#include "lockstep/optim/registry.h"

namespace lockstep::optim {

using namespace option;

std::vector<Option<OptimizerConfig>> OptimizerConfig::options() {
  using O = OptimizerConfig;
  const Range rate = Range::from(0, 1e38), fraction = Range::below(0, 1);
  Range momentum = fraction;
  momentum.word = "auto";
  momentum.word_value = O::momentum_by_algorithm;
  return {
      choice("name", &O::name, optimizer_names(), "algorithm",
             {.peers = {"optim", "optimizer", "optimizer_type"}}),
      number("lr", &O::lr, Range::above(0, 1e38), "learning rate",
             {.may_change = true, .peers = {"learning_rate", "max_lr", "base_lr", "peak_lr"}}),
      number("min_lr", &O::min_lr, rate, "where the schedule ends, at most optimizer.lr",
             {.may_change = true, .peers = {"end_lr", "lr_min", "eta_min"}}),
      numbers("betas", &O::betas, fraction, "adamw, muon: decay of AdamW's two moments",
              {.peers = {"beta1", "beta2", "adam_betas", "adam_beta1", "adam_beta2"}}),
      number("eps", &O::eps, Range::from(0, 1e6), "adamw, muon: added to the root of AdamW's second moment",
             {.peers = {"epsilon", "adam_epsilon"}}),
      number("weight_decay", &O::weight_decay, rate, "weight decay",
             {.may_change = true, .peers = {"wd", "l2"}}),
      choice("decay", &O::decay, {"matrices", "all"},
             "what decays; default: matrices for adamw and muon, all for sgd"),
      number("momentum", &O::momentum, momentum, "sgd, muon: momentum; auto: 0 for sgd, 0.95 for muon"),
      choice("nesterov", &O::nesterov, {"true", "false"},
             "sgd, muon: Nesterov's form of it; default: true for muon, false for sgd"),
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
          "of the learning rate",
          {.may_change = true, .peers = {"scheduler", "lr_scheduler", "lr_schedule", "lr_scheduler_type"}}),
      number("warmup_steps", &O::warmup_steps, counts, "linear warm-up",
             {.unit = "steps", .may_change = true, .peers = {"warmup", "warmup_iters", "lr_warmup_steps"}}),
      number("decay_steps", &O::decay_steps, counts,
             "wsd: the last steps, in which the rate goes from lr to min_lr in a straight line",
             {.unit = "steps",
              .may_change = true,
              .peers = {"num_decay_steps", "cooldown_steps", "lr_wsd_decay_iters"}}),
      numbers("milestones", &O::milestones, Range::from(1, 1e15),
              "step: those from which on the rate is multiplied by gamma once more, rising",
              {.unit = "steps", .may_change = true, .peers = {"lr_steps", "lr_milestones"}}),
      number("gamma", &O::gamma, Range::above(0, 1), "step: what the rate is multiplied by",
             {.may_change = true, .peers = {"lr_gamma", "decay_rate", "lr_decay_rate"}}),
      number("power", &O::power, Range::above(0, 100), "poly: min_lr + (lr - min_lr) (1 - t)^power",
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
      choice("buffers", &E::buffers, {"copy", "average", "leave"}, "what an average does with buffers"),
  };
}

}  // namespace lockstep::optim
