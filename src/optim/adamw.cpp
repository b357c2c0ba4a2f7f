#include "lockstep/optim/adamw.h"

#include "lockstep/base/error.h"

namespace lockstep::optim {

AdamW::AdamW(GradientSource& source, const AdamWOptions& options)
    : Optimizer(source, options.lr, options.weight_decay, options.decay, options.groups),
      beta1_(options.betas[0]),
      beta2_(options.betas[1]),
      eps_(options.eps) {
  for (const double beta : options.betas)
    if (!(beta >= 0 && beta < 1)) throw UsageError("AdamW: beta {} is not in [0, 1)", beta);
  if (!(eps_ >= 0)) throw UsageError("AdamW: eps {} is not a number of at least 0", eps_);
  exp_avg_ = make_slot();
  exp_avg_sq_ = make_slot();
  updates_ = Tensor::zeros({static_cast<std::int64_t>(params().size())}, DType::int64);
}

void AdamW::apply(std::size_t index, const Update& update, std::span<const kernels::EmaTarget> ema) {
  const Param& param = *params()[index];
  // Each parameter counts its own updates, as in PyTorch: one that joins late starts with the full
  // correction.
  std::int64_t& updates = updates_.data<std::int64_t>()[index];
  const kernels::AdamWStep step{.lr = update.lr,
                                .beta1 = beta1_,
                                .beta2 = beta2_,
                                .eps = eps_,
                                .weight_decay = update.weight_decay,
                                .step = updates + 1,
                                .gradient_factor = update.gradient_factor};
  backend().adamw(step, param.value, param.gradient, exp_avg_[index], exp_avg_sq_[index], ema);
  ++updates;
}

std::vector<Slot> AdamW::slots() const {
  std::vector<Tensor> updates(params().size());
  for (std::size_t i = 0; i < updates.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    updates[i] = updates_.rows(row, row + 1).reshape({});
  }
  return {slot_of("exp_avg", exp_avg_), slot_of("exp_avg_sq", exp_avg_sq_), slot_of("step", updates)};
}

}  // namespace lockstep::optim
