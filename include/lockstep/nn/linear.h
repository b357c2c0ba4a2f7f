// Linear: the dense layer.
#pragma once

#include <optional>

#include "lockstep/autograd/functions.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// y = x weight' + bias over the last dimension. weight: [out, in], bias: [out], both U(+-1 / sqrt(in)) at
/// first.
class Linear : public Layer<Linear> {
 public:
  Linear(Module& parent, std::string_view name, std::int64_t in, std::int64_t out, bool with_bias = true);

  /// This layer makes the model's output: its parameters say so.
  void be_head();

  Var forward(const Var& x);
  /// activation(linear(x)), in one go.
  Var forward(const Var& x, ops::Activation activation);

  Parameter weight;
  std::optional<Parameter> bias;
};

/// out(activation(in(x))), in one go.
Var feed_forward(const Var& x, Linear& in, ops::Activation activation, Linear& out);

}  // namespace lockstep::nn
