// What an optimizer reads after a step.
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/autograd/param.h"
#include "lockstep/autograd/sharding.h"
#include "lockstep/kernels/backend.h"

namespace lockstep {

/// Params whose `gradient` is the sum over the global batch, and what divides it. ddp::DataParallel is one
/// for many ranks, LocalGradients for one.
class GradientSource {
 public:
  virtual ~GradientSource() = default;
  /// Trainable and frozen ones, in the order of the module tree.
  virtual std::span<Param* const> params() const = 0;
  /// The global weight (samples, tokens) of the step: gradient / weight is the gradient of the mean.
  virtual double weight() const = 0;
  /// Where the gradients lie and are worked on.
  virtual kernels::Backend& backend() const = 0;
  /// Which elements of each of params() this process updates; only of these does a gradient hold the sum.
  /// None: all of them. The same for life.
  virtual const Sharding* sharding() const { return nullptr; }
  /// The optimizer has written the owned elements of params()[param], or left them as they are. Called once a
  /// step for each trainable parameter, in order.
  virtual void updated([[maybe_unused]] std::size_t param) {}
};

}  // namespace lockstep
