// Loss: a sum and what divides it, so that the mean over the global batch is a true mean at any number of
// ranks.
#pragma once

#include "lockstep/autograd/tape.h"
#include "lockstep/ops/loss.h"

namespace lockstep {

struct Loss {
  Var sum;  ///< scalar float32: backward starts here
  /// float64 [2] on the tape's device: the same sum, and its weight (samples or tokens counted). None: zeros.
  Tensor total;

  /// The total. Waits until it is there.
  ops::WeightedSum read() const;
};

/// The losses of one sample set after another: sums and weights added.
Loss operator+(const Loss& a, const Loss& b);

/// Walks back from a loss: gradients of factor * sum.
void backward(const Loss& loss, float factor = 1);

}  // namespace lockstep
