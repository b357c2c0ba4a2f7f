#include "lockstep/nn/attention.h"

#include <cmath>

namespace lockstep::nn {
namespace {

/// For a weight [3 C, C].
Init glorot_uniform(std::int64_t channels) {
  return Init::uniform(channels > 0 ? std::sqrt(1.5f / static_cast<float>(channels)) : 0);
}

}  // namespace

MultiheadAttention::MultiheadAttention(Module& parent, std::string_view name, std::int64_t channels,
                                       int heads, bool with_bias)
    : Layer(parent, name),
      heads_(heads),
      in_proj_weight(*this, "in_proj_weight", {3 * channels, channels}, glorot_uniform(channels)),
      out_proj(*this, "out_proj", channels, channels, with_bias) {
  if (heads < 1 || channels % heads != 0)
    throw UsageError("{}: {} heads do not divide {} channels", path(), heads, channels);
  if (!with_bias) return;
  in_proj_bias.emplace(*this, "in_proj_bias", Shape{3 * channels}, Init::constant(0));
  initialize(*out_proj.bias, Init::constant(0), seed());
}

Var MultiheadAttention::forward(const Var& x, bool causal) {
  Tape& tape = x.tape();
  const Var bias = in_proj_bias ? tape.parameter(*in_proj_bias) : Var{};
  return out_proj(attention(linear(x, tape.weight(in_proj_weight), bias), heads_, causal));
}

Var MultiheadAttention::forward(const Var& query, const Var& key, const Var& value, bool causal) {
  Tape& tape = query.tape();
  const auto [weight_q, weight_k, weight_v] = chunk<3>(tape.weight(in_proj_weight), 0);
  std::array<Var, 3> bias;
  if (in_proj_bias) bias = chunk<3>(tape.parameter(*in_proj_bias), 0);
  return out_proj(attention(linear(query, weight_q, bias[0]), linear(key, weight_k, bias[1]),
                            linear(value, weight_v, bias[2]), heads_, causal));
}

}  // namespace lockstep::nn
