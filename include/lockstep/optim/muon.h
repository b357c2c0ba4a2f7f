// Muon: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; the formula of
// torch.optim.Muon, in float32 throughout.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lockstep/optim/adamw.h"

namespace lockstep::optim {

/// betas and eps apply to the parameters that AdamW updates, momentum and nesterov to Muon's, others to both.
struct MuonOptions {
  double lr = 1e-3;                            ///< learning rate of a step without a schedule
  double momentum = 0.95;                      ///< of the matrices
  bool nesterov = true;                        ///< whether momentum looks ahead
  std::array<double, 2> betas = {0.9, 0.999};  ///< of AdamW, for the other parameters
  double eps = 1e-8;                           ///< of AdamW, for the other parameters
  double weight_decay = 0.1;                   ///< decoupled from the gradient
  Decay decay = Decay::matrices;               ///< which parameters it reaches
  /// Name patterns of the parameters that Muon updates; empty: see taken_by_muon().
  std::vector<std::string> patterns = {};
  std::vector<ParamGroup> groups = {};  ///< parameters with other rates

  static std::vector<Option<MuonOptions>> options();  ///< all but lr and groups; `muon` for patterns
};

/// Which parameters Muon updates, in the order of `params`: the trainable ones that match a pattern ('*': any
/// run of characters, '?': one), or, without patterns, those of two dimensions that are neither embeddings
/// nor output heads (Param::role). Throws UsageError for a pattern that matches no trainable parameter, or
/// one that is not a matrix, and if Muon would update no parameter.
std::vector<bool> taken_by_muon(std::span<Param* const> params, std::span<const std::string> patterns);

/// Marks these undivided (Param::undivided), which a sharded optimizer needs. Call it before the construction
/// of ddp::DataParallel. Throws like taken_by_muon.
void keep_whole_for_muon(const ModelState& model, std::span<const std::string> patterns);

/// B = momentum B + (1 - momentum) gradient, or Nesterov's form of it; O is the semi-orthogonal matrix
/// nearest to B, approximated by five Newton-Schulz steps; W = W - lr weight_decay W - lr sqrt(max(1, rows /
/// columns)) O. AdamW updates all other parameters.
///
/// Slots: "momentum_buffer" of Muon's parameters: float32 of their shapes; AdamW's slots of the others.
class Muon final : public AdamW {
 public:
  using Options = MuonOptions;  ///< for a Registry
  /// `source` must outlive this. Throws UsageError that names a bad option, or if the source has a Partition
  /// that divides a parameter of Muon's.
  explicit Muon(GradientSource& source, const MuonOptions& options = {});

  std::string_view algorithm() const override { return "muon"; }
  static int states(const Options&, bool undivided) { return undivided ? 1 : 2; }  ///< for Traits
  /// For Traits.
  static std::vector<bool> undivided(const Options& options, std::span<Param* const> params) {
    return taken_by_muon(params, options.patterns);
  }

 private:
  Muon(GradientSource& source, const MuonOptions& options, std::vector<bool> takes);

  void prepare(std::span<const Update> updates) override;
  void apply(std::span<const Update> updates) override;
  std::vector<SlotTensors> slot_tensors() const override;

  bool takes(const Update& update) const { return takes_[update.index]; }
  Shape shape_of(const Update& update) const { return params()[update.index]->value.shape(); }
  Tensor scaled_gradient(const Update& update) const;
  /// The matrix to orthogonalize: the momentum, or Nesterov's form of it. May be the buffer.
  Tensor direction(const Update& update) const;
  /// Float64 sums of squares of the direction, by block.
  Tensor squares_of(const Update& update) const;
  double norm_of(const Update& update) const;
  void move(const Update& update) const;

  double momentum_;
  bool nesterov_;
  std::vector<bool> takes_;                // by parameter
  std::vector<Tensor> momentum_buffer_;    // by parameter; empty for AdamW's
  std::vector<std::int64_t> first_block_;  // by parameter: where its sums begin in squares_
  Tensor squares_;                         // sums of all directions of a step
  std::vector<double> read_;               // squares_ on the CPU
  std::vector<Update> others_;             // of a call of apply()
};

}  // namespace lockstep::optim
