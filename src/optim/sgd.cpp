#include "lockstep/optim/sgd.h"

#include "lockstep/base/error.h"

namespace lockstep::optim {

Sgd::Sgd(GradientSource& source, const SgdOptions& options)
    : Optimizer(source, options.lr, options.weight_decay, options.decay, options.groups),
      momentum_(options.momentum),
      nesterov_(options.nesterov) {
  if (!(momentum_ >= 0 && momentum_ < 1)) throw UsageError("SGD: momentum {} is not in [0, 1)", momentum_);
  if (nesterov_ && momentum_ == 0) throw UsageError("SGD: nesterov needs a momentum above 0");
  if (momentum_ > 0) momentum_buffer_ = make_slot();
  batch_.reserve(params().size());
}

void Sgd::apply(std::span<const Update> updates) {
  // Never `first`: in a buffer of zeros, momentum * 0 + gradient is the gradient, and no state says which
  // parameters have had theirs.
  batch_.clear();
  for (const Update& update : updates) {
    batch_.push_back({.step = {.lr = update.lr,
                               .momentum = momentum_,
                               .weight_decay = update.weight_decay,
                               .nesterov = nesterov_,
                               .first = false,
                               .gradient_factor = update.gradient_factor},
                      .value = update.value,
                      .gradient = update.gradient,
                      .momentum_buffer = momentum_buffer_.empty() ? Tensor() : momentum_buffer_[update.index],
                      .ema = update.ema});
  }
  backend().sgd(batch_);
  batch_.clear();
}

std::vector<Optimizer::SlotTensors> Sgd::slot_tensors() const {
  if (momentum_buffer_.empty()) return {};
  return {{.name = "momentum_buffer", .tensors = momentum_buffer_}};
}

}  // namespace lockstep::optim
