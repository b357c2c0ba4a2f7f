// GradientSink: takes gradients and statistics from a backward pass. GradientSource: the summed gradients
// that an optimizer reads after a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/autograd/param.h"
#include "lockstep/autograd/partition.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/kernels/context.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

/// Numbers that a device computes from a step's gradients, after their sums; the step's one read brings them
/// to the CPU.
class Measurement {
 public:
  virtual ~Measurement() = default;
  /// Called when the `gradient` of every trainable parameter is its sum. Launches the computation and returns
  /// the tensors to read; reads nothing itself. Collective if the source has a Partition.
  virtual kernels::Transfer launch() = 0;
};

/// Parameters whose `gradient` is the sum over the global batch, and the count that divides it.
/// ddp::DataParallel is the source for many ranks, LocalGradients for one.
class GradientSource {
 public:
  virtual ~GradientSource() = default;
  /// Trainable and frozen parameters, in the order of the module tree.
  virtual std::span<Param* const> params() const = 0;
  /// The samples or tokens of the global batch: gradient / count is the gradient of the mean.
  virtual double count() const = 0;
  /// The number of steps begun: equal numbers mean gradients of the same step. 0: not counted.
  virtual std::uint64_t steps_begun() const { return 0; }
  /// The backend of the device that holds the gradients.
  virtual kernels::Backend& backend() const = 0;
  /// The shape of the run as far as it is known, for checkpoints.
  virtual RunShape run() const { return {}; }
  /// The elements of each of params() that this process updates: only these elements of a gradient hold the
  /// sum. Null: all of them. It never changes.
  virtual const Partition* partition() const { return nullptr; }
  /// The optimizer has written, or deliberately kept, the owned elements of params()[param]. Called once a
  /// step for each trainable parameter, in order.
  virtual void updated([[maybe_unused]] std::size_t param) {}
  /// A handle that expires with this object.
  std::weak_ptr<const void> lives() const { return lives_; }

 private:
  std::shared_ptr<const void> lives_ = std::make_shared<char>();
};

/// Memory for the gradient of one leaf. With `accumulate` the first write of the pass adds to its contents.
struct GradientView {
  Tensor memory;            ///< float32, of the parameter's shape, for each shard (Tape::of_each_shard)
  bool accumulate = false;  ///< whether to add to the contents
};

/// Receives the gradients of a Tape, on the Tape's thread. A sink may start communication in ready().
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  /// Where this pass writes the gradient of `param`: float32 of its shape, for each shard of the pass. Called
  /// once per pass, before the first write.
  virtual GradientView gradient_view(Param& param) = 0;
  /// The last contribution of this pass to `param` has been written.
  virtual void ready(Param& param) = 0;
  /// float64 [elements], for each shard; called once per contribution. The contribution is written when
  /// contributed() is called.
  virtual GradientView gradient_view(Statistic& statistic) = 0;
  virtual void contributed(Statistic& statistic) = 0;  ///< The contribution of this pass is written
  /// Called between any two operations, for communication to make progress.
  virtual void progress() {}
};

/// The sink of a program of one process without a data-parallel wrapper: gradients accumulate in local
/// tensors until clear(); statistics are applied at once.
class LocalGradients final : public GradientSink, public GradientSource {
 public:
  /// For the parameters of a model, with gradients in memory of this backend.
  LocalGradients(const ModelState& state, kernels::Backend& backend);

  GradientView gradient_view(Param& param) override;
  void ready(Param&) override {}
  GradientView gradient_view(Statistic& statistic) override;
  void contributed(Statistic& statistic) override;  ///< applies it: there are no other ranks

  std::span<Param* const> params() const override { return params_; }
  double count() const override { return count_; }
  kernels::Backend& backend() const override { return backend_; }
  /// Adds the samples or tokens of a loss to the count, which divides the gradients.
  void add_count(double count) { count_ += count; }
  /// Forgets all gradients and the count.
  void clear();

 private:
  kernels::Backend& backend_;
  std::vector<Param*> params_;
  Tensor statistic_;  // memory for the largest statistic
  double count_ = 0;
};

}  // namespace lockstep
