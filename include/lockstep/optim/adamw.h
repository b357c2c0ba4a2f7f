// AdamW: Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019; PyTorch's order of
// operations.
#pragma once

#include <array>

#include "lockstep/ops/update.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

/// The options of torch.optim.AdamW, with its defaults.
struct AdamWOptions {
  double lr = 1e-3;                            ///< learning rate of a step without a schedule
  std::array<double, 2> betas = {0.9, 0.999};  ///< decay of the two moments
  double eps = 1e-8;                           ///< added to the root of the second moment
  double weight_decay = 0.01;                  ///< decoupled from the gradient
  Decay decay = Decay::matrices;               ///< which parameters it reaches
  std::vector<ParamGroup> groups = {};         ///< parameters with other rates

  static std::vector<Option<AdamWOptions>> options();  ///< all but lr and groups
};

/// Slots: "exp_avg", "exp_avg_sq": float32 of the parameters' shapes; "step": int64 scalars on the CPU, the
/// number of updates of each parameter (fewer than steps() if it had no gradient in some).
class AdamW : public Optimizer {
 public:
  using Options = AdamWOptions;  ///< for a Registry
  /// `source` must outlive this. Throws UsageError that names a bad option.
  explicit AdamW(GradientSource& source, const AdamWOptions& options = {});

  std::string_view algorithm() const override { return "adamw"; }
  static int states(const Options&, bool) { return 2; }  ///< for Traits

 protected:
  /// For an algorithm that updates the other parameters itself: `takes` (by index) marks those of AdamW.
  AdamW(GradientSource& source, const AdamWOptions& options, const std::vector<bool>& takes);

  void apply(std::span<const Update> updates) override;
  std::vector<SlotTensors> slot_tensors() const override;  ///< exp_avg, exp_avg_sq

 private:
  std::int64_t& made(std::size_t param) const { return *updates_[param].data<std::int64_t>(); }

  double beta1_, beta2_, eps_;
  std::vector<Tensor> exp_avg_, exp_avg_sq_;             // by parameter
  std::vector<Tensor> updates_;                          // by parameter: int64 scalars on the CPU
  std::vector<ops::ParameterUpdate<ops::AdamW>> batch_;  // of a call of apply()
};

/// Rows of betas and eps, and those of decay_options().
template <class Options>
std::vector<Option<Options>> adamw_options() {
  std::vector<Option<Options>> rows = decay_options<Options>();
  rows.insert(
      rows.begin(),
      {option::numbers("betas", &Options::betas, Range::below(0, 1), "decay of AdamW's two moments",
                       {.peers = {"beta1", "beta2", "adam_betas", "adam_beta1", "adam_beta2"}}),
       option::number("eps", &Options::eps, Range::from(0, 1e6), "added to the root of AdamW's second moment",
                      {.peers = {"epsilon", "adam_epsilon"}})});
  return rows;
}

}  // namespace lockstep::optim
