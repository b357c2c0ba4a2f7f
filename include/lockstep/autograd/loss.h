// Loss: a sum and what divides it, so that the mean over the global batch is a true mean at any number of
// ranks.
#pragma once

#include "lockstep/autograd/tape.h"
#include "lockstep/kernels/parameters.h"

namespace lockstep {

struct Loss {
  Var sum;                     ///< scalar float32: backward starts here
  kernels::WeightedSum total;  ///< the same sum in float64, and its weight (samples or tokens counted)
};

/// Walks back from a loss: gradients of factor * sum.
void backward(const Loss& loss, float factor = 1);

}  // namespace lockstep
