// SGD with momentum and Nesterov's variant, as PyTorch defines them (no dampening).
#pragma once

#include <variant>

#include "lockstep/ops/update.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

/// The options of torch.optim.SGD, with its defaults.
struct SgdOptions {
  double lr = 1e-2;                     ///< learning rate of a step without a schedule
  double momentum = 0;                  ///< 0: no momentum
  bool nesterov = false;                ///< whether momentum looks ahead
  double weight_decay = 0;              ///< added to the gradient
  Decay decay = Decay::all;             ///< which parameters it reaches
  std::vector<ParamGroup> groups = {};  ///< parameters with other rates

  static std::vector<Option<SgdOptions>> options();  ///< all but lr and groups
  void check() const;                                ///< throws Misfit
};

/// Slots: "momentum_buffer": float32 of the parameters' shapes; no slot if momentum is 0.
class Sgd final : public Optimizer {
 public:
  using Options = SgdOptions;  ///< for a Registry
  /// `source` must outlive this. Throws UsageError that names a bad option.
  explicit Sgd(GradientSource& source, const SgdOptions& options = {});

  std::string_view algorithm() const override { return "sgd"; }
  static int states(const Options& options, bool) { return options.momentum > 0 ? 1 : 0; }  ///< for Traits

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

/// Rows of momentum and nesterov. In a configuration, "auto" or an empty value means the algorithm's default.
template <class Options>
std::vector<Option<Options>> momentum_options() {
  Range momentum = Range::below(0, 1);
  momentum.word = "auto";
  momentum.word_value = std::numeric_limits<double>::quiet_NaN();
  return {
      option::number("momentum", &Options::momentum, momentum, "momentum; auto: 0 for sgd, 0.95 for muon"),
      option::or_default(option::flag("nesterov", &Options::nesterov,
                                      "Nesterov momentum; default: true for muon, false for sgd"))};
}

}  // namespace lockstep::optim
