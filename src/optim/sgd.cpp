#include "lockstep/optim/sgd.h"

#include <algorithm>
#include <iterator>

#include "lockstep/ops/update.h"

namespace lockstep::optim {

std::vector<Option<SgdOptions>> SgdOptions::options() {
  std::vector<Option<SgdOptions>> rows = decay_options<SgdOptions>();
  std::ranges::move(momentum_options<SgdOptions>(), std::back_inserter(rows));
  return rows;
}

void SgdOptions::check() const {
  if (nesterov && momentum == 0) throw Misfit("nesterov", "needs optimizer.momentum above 0");
}

Sgd::Sgd(GradientSource& source, const SgdOptions& options)
    : Optimizer(source, options), momentum_(options.momentum), nesterov_(options.nesterov) {
  if (momentum_ > 0) momentum_buffer_ = make_slot();
  if (nesterov_)
    batch_.emplace<Batch<ops::SgdMomentum<true>>>();
  else if (momentum_ > 0)
    batch_.emplace<Batch<ops::SgdMomentum<false>>>();
  std::visit([this](auto& batch) { batch.reserve(params().size()); }, batch_);
}

void Sgd::apply(std::span<const Update> updates) {
  // A buffer starts as zeros: momentum * 0 + gradient is the gradient.
  const auto make_updates = [&]<class Rule>(Batch<Rule>& batch) {
    batch.clear();
    for (const Update& update : updates) {
      ops::ParameterUpdate<Rule>& made = batch.emplace_back();
      made.rule.rate = static_cast<float>(update.lr);
      made.rule.decay = static_cast<float>(update.weight_decay);
      made.rule.gradient_factor = update.gradient_factor;
      made.value = update.value;
      made.gradient = update.gradient;
      made.ema = update.ema;
      made.rounded = update.rounded;
      if constexpr (Rule::states > 0) {
        made.rule.momentum = static_cast<float>(momentum_);
        made.state = {momentum_buffer_[update.index]};
      }
    }
    backend().run(ops::Update<Rule>{batch});
    batch.clear();
  };
  std::visit(make_updates, batch_);
}

std::vector<Optimizer::SlotTensors> Sgd::slot_tensors() const {
  if (momentum_buffer_.empty()) return {};
  return {{.name = "momentum_buffer", .tensors = momentum_buffer_}};
}

}  // namespace lockstep::optim
