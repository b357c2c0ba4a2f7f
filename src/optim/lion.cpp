#include "lockstep/optim/lion.h"

namespace lockstep::optim {

std::vector<Option<LionOptions>> LionOptions::options() {
  std::vector<Option<LionOptions>> rows = decay_options<LionOptions>();
  rows.insert(rows.begin(), option::numbers("betas", &LionOptions::betas, Range::below(0, 1),
                                            "decay of the signed direction, and of the momentum",
                                            {.peers = {"beta1", "beta2", "lion_betas"}}));
  return rows;
}

Lion::Lion(GradientSource& source, const LionOptions& options)
    : Optimizer(source, options), betas_(options.betas), exp_avg_(make_slot()) {
  batch_.reserve(params().size());
}

void Lion::apply(std::span<const Update> updates) {
  batch_.clear();
  for (const Update& update : updates)
    batch_.push_back({.rule = {.rate = static_cast<float>(update.lr),
                               .decay = static_cast<float>(1 - update.lr * update.weight_decay),
                               .beta1 = static_cast<float>(betas_[0]),
                               .fresh1 = static_cast<float>(1 - betas_[0]),
                               .beta2 = static_cast<float>(betas_[1]),
                               .fresh2 = static_cast<float>(1 - betas_[1]),
                               .gradient_factor = update.gradient_factor},
                      .value = update.value,
                      .gradient = update.gradient,
                      .state = {exp_avg_[update.index]},
                      .ema = update.ema,
                      .rounded = update.rounded});
  backend().run(ops::Update<ops::Lion>{batch_});
  batch_.clear();
}

}  // namespace lockstep::optim
