// LayerNorm, RMSNorm, GroupNorm, BatchNorm2d (of volumes, too) and SyncBatchNorm. Weights begin at 1, biases
// at 0.
#pragma once

#include <limits>
#include <optional>

#include "lockstep/autograd/functions.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// Over the last dimension.
class LayerNorm : public Layer<LayerNorm> {
 public:
  LayerNorm(Module& parent, std::string_view name, std::int64_t width, float eps = 1e-5f,
            bool with_bias = true);

  Var forward(const Var& x);
  /// The norm of x + branch, fused with the addition; an absent branch (Var{}) adds nothing.
  SumAndNorm forward(const Var& x, const Var& branch);

  Parameter weight;
  std::optional<Parameter> bias;

 private:
  Var bias_or_zeros(Tape& tape);

  float eps_;
};

/// Over the last dimension, without mean and bias. The default of eps is PyTorch's for float32.
class RMSNorm : public Layer<RMSNorm> {
 public:
  RMSNorm(Module& parent, std::string_view name, std::int64_t width,
          float eps = std::numeric_limits<float>::epsilon());

  Var forward(const Var& x);

 private:
  float eps_;

 public:
  Parameter weight;
};

/// Over groups of channels and all positions of an image or a volume.
class GroupNorm : public Layer<GroupNorm> {
 public:
  /// Throws UsageError if the groups do not divide the channels.
  GroupNorm(Module& parent, std::string_view name, int groups, std::int64_t channels, float eps = 1e-5f);

  Var forward(const Var& x);
  /// Fused with a scale and shift of each image, and with a SiLU.
  Var adaptive(const Var& x, const AdaptiveNorm& how);

 private:
  int groups_;
  float eps_;

 public:
  Parameter weight, bias;
};

/// The options of a batch norm.
struct BatchNormSettings {
  float momentum = 0.1f;  ///< running = (1 - momentum) running + momentum new
  float eps = 1e-5f;      ///< added to the variance
  /// Training passes normalise by the statistics of all ranks of Pass::layer_transport (if there is one), not
  /// of the shard alone.
  bool sync = false;
  /// Training passes, too, normalise by the running statistics, which stay as they are; ranks share nothing.
  bool frozen_statistics = false;
};

/// Over batch and positions, per channel; x: [N, C, H, W], [N, C, D, H, W] or [N, C]. Training passes
/// normalise by the shard's mean and biased variance. One value a channel is a UsageError before a run's
/// first update (Pass::step 0). The running mean and (unbiased) variance are over all shards of a step,
/// merged once the step's sums are known; evaluations use them.
class BatchNorm2d : public Layer<BatchNorm2d> {
  friend void convert_sync_batch_norm(Module& model);
  friend void freeze_statistics(Module& model);

 public:
  BatchNorm2d(Module& parent, std::string_view name, std::int64_t channels,
              const BatchNormSettings& settings = {});

  Var forward(const Var& x);
  bool meets_across_ranks() const override { return settings_.sync && !settings_.frozen_statistics; }
  bool has_frozen_statistics() const { return settings_.frozen_statistics; }  ///< of BatchNormSettings
  /// Elements of a channel in this rank's last pass; 0 before the first.
  std::int64_t values_per_channel() const { return values_; }
  /// relu(norm(x) + shortcut) in fewer passes over memory; the shortcut may be absent (Var{}).
  Var relu(const Var& x, const Var& shortcut = {});

  Parameter weight, bias;
  StateBuffer running_mean, running_var;  ///< of all shards; used in evaluations
  StateBuffer num_batches_tracked;        ///< int64: steps that had an element

 private:
  class RunningMoments final : public Moments {
   public:
    explicit RunningMoments(BatchNorm2d& owner);
    void apply(kernels::Backend& backend, const Tensor& total) override;
    bool meets_across_ranks() const override { return owner_.meets_across_ranks(); }
    bool is_used() const override { return !owner_.settings_.frozen_statistics; }

   private:
    BatchNorm2d& owner_;
  };

  BatchNormOptions options(const Var& x);

  BatchNormSettings settings_;
  std::int64_t values_ = 0;
  RunningMoments moments_;
};

using BatchNorm3d = BatchNorm2d;  ///< the same, by the name for volumes

/// A BatchNorm2d whose ranks share their statistics. Every rank of the transport takes part in every
/// recorded training pass, if necessary with a batch of 0.
class SyncBatchNorm : public BatchNorm2d {
 public:
  SyncBatchNorm(Module& parent, std::string_view name, std::int64_t channels,
                BatchNormSettings settings = {});
};

/// Makes the ranks of every BatchNorm2d in `model` share their statistics, as
/// torch.nn.SyncBatchNorm.convert_sync_batchnorm does. Names, parameters and buffers stay. Call it before
/// constructing the DataParallel; the next step of an earlier one is a UsageError.
void convert_sync_batch_norm(Module& model);

/// Makes every BatchNorm2d in `model` normalise by its running statistics in training passes, too, as eval()
/// of PyTorch's batch norms does: they stay as they are, and ranks share nothing. Weights and biases still
/// train; freeze() keeps them. Call it before constructing the DataParallel. UsageError if there is no
/// BatchNorm2d.
void freeze_statistics(Module& model);

}  // namespace lockstep::nn
