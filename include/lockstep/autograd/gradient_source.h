// What an optimizer reads after a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/autograd/param.h"
#include "lockstep/autograd/sharding.h"
#include "lockstep/kernels/backend.h"

namespace lockstep {

/// Numbers that a device computes from a step's gradients, after their sums; the step's one read brings them
/// to the CPU.
class Measurement {
 public:
  virtual ~Measurement() = default;
  /// All trainable parameters have their sum as `gradient`. Launches the computation and returns what to
  /// read; reads nothing itself. Collective if the source has a Sharding.
  virtual kernels::Transfer ask() = 0;
};

/// Params whose `gradient` is the sum over the global batch, and what divides it. ddp::DataParallel is one
/// for many ranks, LocalGradients for one.
class GradientSource {
 public:
  virtual ~GradientSource() = default;
  /// Trainable and frozen ones, in the order of the module tree.
  virtual std::span<Param* const> params() const = 0;
  /// The global weight (samples, tokens) of the step: gradient / weight is the gradient of the mean.
  virtual double weight() const = 0;
  /// Steps begun: while it stays the same, the gradients are of one step. 0: not counted.
  virtual std::uint64_t steps_begun() const { return 0; }
  /// Of the device that holds the gradients.
  virtual kernels::Backend& backend() const = 0;
  /// Which elements of each of params() this process updates; only of these does a gradient hold the sum.
  /// None: all of them. The same for life.
  virtual const Sharding* sharding() const { return nullptr; }
  /// The optimizer has written, or deliberately kept, the owned elements of params()[param]. Called once a
  /// step for each trainable parameter, in order.
  virtual void updated([[maybe_unused]] std::size_t param) {}
};

}  // namespace lockstep
