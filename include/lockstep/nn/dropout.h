// Dropout: a layer that zeroes elements in training.
#pragma once

#include "lockstep/autograd/functions.h"
#include "lockstep/base/random.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// Zeroes elements with probability p and scales the rest by 1 / (1 - p). Draws are keyed by the pass and by
/// this module's path: use one Dropout per place in the model.
class Dropout : public Layer<Dropout> {
 public:
  /// Throws UsageError unless 0 <= p < 1.
  Dropout(Module& parent, std::string_view name, float p)
      : Layer(parent, name), p_(p), purpose_(purpose_of("dropout:" + path())) {
    if (!(p >= 0 && p < 1)) throw UsageError("{}: a dropout probability of {} is not in [0, 1)", path(), p);
  }

  Var forward(const Var& x) { return dropout(x, p_, purpose_); }

 private:
  float p_;
  std::uint64_t purpose_;
};

}  // namespace lockstep::nn
