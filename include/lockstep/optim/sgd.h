// SGD with momentum and Nesterov's variant, as PyTorch defines them (no dampening).
#pragma once

#include <variant>

#include "lockstep/ops/update.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

struct SgdOptions {
  double lr = 1e-2;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
  Decay decay = Decay::all;
  std::vector<ParamGroup> groups = {};
};

/// Slots: "momentum_buffer": float32 of the parameters' shapes; no slot if momentum is 0.
class Sgd final : public Optimizer {
 public:
  /// `source` must outlive this. Throws UsageError on a bad option, saying which.
  explicit Sgd(GradientSource& source, const SgdOptions& options = {});

  std::string_view algorithm() const override { return "sgd"; }

 private:
  void apply(std::span<const Update> updates) override;
  std::vector<SlotTensors> slot_tensors() const override;

  double momentum_;
  bool nesterov_;
  std::vector<Tensor> momentum_buffer_;  // by parameter; empty without momentum
  template <class Rule>
  using Batch = std::vector<ops::ParameterUpdate<Rule>>;
  std::variant<Batch<ops::Sgd>, Batch<ops::SgdMomentum<false>>, Batch<ops::SgdMomentum<true>>>
      batch_;  // of a call
};

}  // namespace lockstep::optim
