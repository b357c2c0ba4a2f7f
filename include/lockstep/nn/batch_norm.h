// BatchNorm2d and SyncBatchNorm.
#pragma once

#include "lockstep/autograd/functions.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

struct BatchNormSettings {
  float momentum = 0.1f;  ///< running = (1 - momentum) running + momentum new
  float eps = 1e-5f;
  /// Training passes normalise by the statistics of all ranks of Pass::layer_communicator (where there is
  /// one), not of the shard alone.
  bool sync = false;
};

/// Over batch and places, per channel; x: [N, C, H, W] or [N, C]. Training passes normalise by the shard's
/// mean and biased variance. The running mean and (unbiased) variance are over all shards of a step, merged
/// once the step's sums are known; evaluations use them.
class BatchNorm2d : public Layer<BatchNorm2d> {
 public:
  BatchNorm2d(Module& parent, std::string_view name, std::int64_t channels,
              const BatchNormSettings& settings = {});

  Var forward(const Var& x);
  /// relu of that plus the shortcut, which may be absent (Var{}), in fewer passes over memory.
  Var relu(const Var& x, const Var& shortcut = {});

  Parameter weight, bias;
  StateBuffer running_mean, running_var;
  StateBuffer num_batches_tracked;  ///< int64: steps that had an element

 private:
  class RunningMoments final : public Moments {
   public:
    explicit RunningMoments(BatchNorm2d& owner);
    void apply(kernels::Backend& backend, const Tensor& total) override;

   private:
    BatchNorm2d& owner_;
  };

  BatchNormOptions options(const Tape& tape);

  BatchNormSettings settings_;
  RunningMoments moments_;
};

/// A BatchNorm2d whose ranks share their statistics. Every rank of the communicator takes part in every
/// recorded training pass, if need be with a batch of 0.
class SyncBatchNorm : public BatchNorm2d {
 public:
  SyncBatchNorm(Module& parent, std::string_view name, std::int64_t channels,
                BatchNormSettings settings = {});
};

}  // namespace lockstep::nn
