// What the blocks of gpt, vit and encoder have in common.
#pragma once

#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/recompute.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/norm.h"

namespace lockstep::models {

/// The residual stream x + branch, which the next layer norm adds. An absent branch (Var{}) counts as zero.
struct Residual {
  Var x, branch;  ///< the stream; the branch to add to it
};

/// block(input, more...). With `recompute` only the stream is kept until the backward, and the branch is
/// therefore added at once.
template <class Block, class... More>
Residual run_block(Block& block, const Residual& input, bool recompute, const More&... more) {
  if (!recompute) return block(input, more...);
  const auto sum = [&block, x = input.x, more...] {
    const Residual after = block(Residual{x, {}}, more...);
    return after.x + after.branch;
  };
  return {recomputed(input.x.tape(), sum), {}};
}

/// The modules of an encoder's block, whose names differ between programs.
struct EncoderParts {
  nn::LayerNorm& attention_norm;      ///< before the attention
  nn::MultiheadAttention& attention;  ///< of the norm to itself
  nn::Dropout& attention_dropout;     ///< of its result
  nn::LayerNorm& feed_forward_norm;   ///< before the two linear layers
  nn::Linear& in;                     ///< the first of them
  nn::Dropout& hidden_dropout;        ///< after its GELU
  nn::Linear& out;                    ///< the second
  nn::Dropout& dropout;               ///< of its result
};

/// Self-attention and two linear layers with GELU between, each after a norm. x, branch: [N, T, channels];
/// bias: of the attention.
inline Residual run_encoder_block(const EncoderParts& of, const Residual& input, bool causal = false,
                                  const AttentionBias& bias = {}) {
  constexpr ops::Activation gelu = ops::Activation::gelu_erf;
  const auto [x, x_norm] = of.attention_norm(input.x, input.branch);
  const auto [sum, sum_norm] =
      of.feed_forward_norm(x, of.attention_dropout(of.attention(x_norm, causal, bias)));
  if (of.dropout.p() == 0) return {sum, nn::feed_forward(sum_norm, of.in, gelu, of.out)};
  return {sum, of.dropout(of.out(of.hidden_dropout(of.in(sum_norm, gelu))))};
}

}  // namespace lockstep::models
