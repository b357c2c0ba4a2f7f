// MultiheadAttention: attention between its projections.
#pragma once

#include <optional>

#include "lockstep/autograd/functions.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// PyTorch's, with batch_first: out_proj(attention of the thirds of x in_proj_weight' + in_proj_bias).
/// in_proj_weight: [3 C, C], uniform as by Glorot and Bengio (2010) at first; biases begin at 0.
class MultiheadAttention : public Layer<MultiheadAttention> {
 public:
  /// Throws UsageError if the heads do not divide the channels.
  MultiheadAttention(Module& parent, std::string_view name, std::int64_t channels, int heads,
                     bool with_bias = true);

  /// x: [B, T, C], which looks at itself; with `causal`, at places up to its own.
  Var forward(const Var& x, bool causal = false);
  /// query: [B, Tq, C], which looks at key and value: [B, Tk, C].
  Var forward(const Var& query, const Var& key, const Var& value, bool causal = false);

 private:
  int heads_;

 public:
  Parameter in_proj_weight;
  std::optional<Parameter> in_proj_bias;
  Linear out_proj;
};

}  // namespace lockstep::nn
