#include "lockstep/optim/adamw.h"

#include "lockstep/ops/update.h"

namespace lockstep::optim {

std::vector<Option<AdamWOptions>> AdamWOptions::options() { return adamw_options<AdamWOptions>(); }

AdamW::AdamW(GradientSource& source, const AdamWOptions& options)
    : AdamW(source, options, std::vector<bool>(source.params().size(), true)) {}

AdamW::AdamW(GradientSource& source, const AdamWOptions& options, const std::vector<bool>& takes)
    : Optimizer(source, options), beta1_(options.betas[0]), beta2_(options.betas[1]), eps_(options.eps) {
  exp_avg_ = make_slot(takes);
  exp_avg_sq_ = make_slot(takes);
  const Tensor updates = Tensor::zeros({static_cast<std::int64_t>(params().size())}, DType::int64);
  for (std::size_t i = 0; i < params().size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    updates_.push_back(exp_avg_[i] ? updates.rows(row, row + 1).reshape({}) : Tensor());
  }
  batch_.reserve(params().size());
}

void AdamW::apply(std::span<const Update> updates) {
  batch_.clear();
  for (const Update& update : updates) {
    batch_.push_back({.rule = ops::AdamW::of({.lr = update.lr,
                                              .beta1 = beta1_,
                                              .beta2 = beta2_,
                                              .eps = eps_,
                                              .weight_decay = update.weight_decay,
                                              .step = made(update.index) + 1,
                                              .gradient_factor = update.gradient_factor}),
                      .value = update.value,
                      .gradient = update.gradient,
                      .state = {exp_avg_[update.index], exp_avg_sq_[update.index]},
                      .ema = update.ema,
                      .rounded = update.rounded});
  }
  backend().run(ops::Update<ops::AdamW>{batch_});
  for (const Update& update : updates) ++made(update.index);
  batch_.clear();
}

std::vector<Optimizer::SlotTensors> AdamW::slot_tensors() const {
  return {{.name = "exp_avg", .tensors = exp_avg_},
          {.name = "exp_avg_sq", .tensors = exp_avg_sq_},
          {.name = "step", .tensors = updates_, .per_element = false}};
}

}  // namespace lockstep::optim
