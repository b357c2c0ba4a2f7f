// Lion: Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023.
#pragma once

#include <array>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

/// The paper's options. lr is 3 to 10 times smaller than AdamW's, and weight_decay larger by that factor.
struct LionOptions {
  double lr = 1e-4;                           ///< learning rate of a step without a schedule
  std::array<double, 2> betas = {0.9, 0.99};  ///< decay of the signed direction, and of the momentum
  double weight_decay = 0;                    ///< decoupled from the gradient
  Decay decay = Decay::matrices;              ///< which parameters it reaches
  std::vector<ParamGroup> groups = {};        ///< parameters with other rates

  static std::vector<Option<LionOptions>> options();  ///< all but lr and groups
};

/// W = W - lr weight_decay W - lr sign(beta1 m + (1 - beta1) gradient), where the sign of 0 is 0; then
/// m = beta2 m + (1 - beta2) gradient.
///
/// Slots: "exp_avg", m: float32 of the parameters' shapes.
class Lion final : public Optimizer {
 public:
  using Options = LionOptions;  ///< for a Registry
  /// `source` must outlive this. Throws UsageError that names a bad option.
  explicit Lion(GradientSource& source, const LionOptions& options = {});

  std::string_view algorithm() const override { return "lion"; }
  static int states(const Options&, bool) { return 1; }  ///< for Traits

 private:
  void apply(std::span<const Update> updates) override;
  std::vector<SlotTensors> slot_tensors() const override {
    return {{.name = "exp_avg", .tensors = exp_avg_}};
  }

  std::array<double, 2> betas_;
  std::vector<Tensor> exp_avg_;                         // by parameter
  std::vector<ops::ParameterUpdate<ops::Lion>> batch_;  // of a call of apply()
};

}  // namespace lockstep::optim
