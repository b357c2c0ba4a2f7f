// Linear: the dense layer.
#pragma once

#include <optional>

#include "lockstep/autograd/functions.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// y = x weight' + bias over the last dimension. weight: [out, in], bias: [out], both U(+-1 / sqrt(in)) at
/// first.
class Linear : public Module {
 public:
  Linear(Module& parent, std::string_view name, std::int64_t in, std::int64_t out, bool with_bias = true);

  Var operator()(const Var& x);

  Parameter weight;
  std::optional<Parameter> bias;
};

}  // namespace lockstep::nn
