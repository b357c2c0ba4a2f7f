// What an optimizer reads after a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/autograd/param.h"
#include "lockstep/autograd/sharding.h"
#include "lockstep/kernels/backend.h"

namespace lockstep {

/// Numbers about a step's gradients that a device makes: asked for behind their sums, and brought to the CPU
/// in the read that the step makes anyway.
class Measurement {
 public:
  virtual ~Measurement() = default;
  /// The sums are there for all trainable parameters, as `gradient`. Asks the device for the numbers, and
  /// says what to read; reads nothing itself. Collective where the source has a Sharding.
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
  /// Steps begun: of one step are the gradients for as long as it stays the same. 0: nobody counts.
  virtual std::uint64_t steps_begun() const { return 0; }
  /// Where the gradients are and are worked on.
  virtual kernels::Backend& backend() const = 0;
  /// Which elements of each of params() this process updates; only of these does a gradient hold the sum.
  /// None: all of them. The same for life.
  virtual const Sharding* sharding() const { return nullptr; }
  /// The optimizer has written the owned elements of params()[param], or left them as they are. Called once a
  /// step for each trainable parameter, in order.
  virtual void updated([[maybe_unused]] std::size_t param) {}
};

}  // namespace lockstep
