#include "models/gpt.h"

#include <cmath>

#include "lockstep/autograd/recompute.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::models {
namespace {

/// block(x), of which only x is kept until the backward, so the sum is made at once.
Var run_again(GptBlock& block, const Var& x) {
  return recomputed(x.tape(), [&block, x] {
    const Residual after = block(Residual{x, {}});
    return after.x + after.branch;
  });
}

}  // namespace

GptBlock::GptBlock(nn::Module& parent, std::string_view name, const ModelConfig& config)
    : Layer(parent, name),
      heads_(static_cast<int>(config.heads)),
      ln_1_(*this, "ln_1", config.channels),
      ln_2_(*this, "ln_2", config.channels),
      c_attn_(*this, "attn.c_attn", config.channels, 3 * config.channels),
      attn_c_proj_(*this, "attn.c_proj", config.channels, config.channels),
      c_fc_(*this, "mlp.c_fc", config.channels, 4 * config.channels),
      mlp_c_proj_(*this, "mlp.c_proj", 4 * config.channels, config.channels),
      attn_dropout_(*this, "attn.dropout", static_cast<float>(config.dropout)),
      mlp_dropout_(*this, "mlp.dropout", static_cast<float>(config.dropout)) {}

Residual GptBlock::forward(const Residual& given) {
  const auto [x, x_norm] = ln_1_(given.x, given.branch);
  const Var attended = attn_dropout_(attn_c_proj_(attention(c_attn_(x_norm), heads_, true)));
  const auto [sum, sum_norm] = ln_2_(x, attended);
  return {sum, mlp_dropout_(nn::feed_forward(sum_norm, c_fc_, ops::Activation::gelu_tanh, mlp_c_proj_))};
}

Gpt::Gpt(const ModelConfig& config, std::uint64_t seed)
    : Model(seed),
      wte_(*this, "transformer.wte", config.vocab, config.channels),
      wpe_(*this, "transformer.wpe", config.context, config.channels),
      dropout_(*this, "transformer.dropout", static_cast<float>(config.dropout)),
      recompute_(config.recompute),
      blocks_(*this, "transformer.h"),
      ln_f_(*this, "transformer.ln_f", config.channels) {
  for (std::int64_t i = 0; i < config.layers; ++i) blocks_.emplace_back(config);
  initialize_weights(config.layers);
}

void Gpt::initialize_weights(std::int64_t layers) {
  const float projection = 0.02f / std::sqrt(2 * static_cast<float>(layers));
  for (Param* const param : state().params) {
    if (param->value.shape().rank() == 2)
      initialize(*param, nn::Init::normal(param->name.ends_with("c_proj.weight") ? projection : 0.02f),
                 seed());
    else if (param->name.ends_with(".bias"))
      initialize(*param, nn::Init::constant(0), seed());
  }
}

void Gpt::check_input(const Shape& x) const {
  const std::int64_t context = wpe_.weight.value.size(0);
  if (x.rank() == 2 && x[1] <= context) return;
  throw DataError("a batch of shape {} does not fit the gpt's [batch, time] with time <= {} (model.context)",
                  to_string(x), context);
}

Var Gpt::forward(Tape& tape, const Tensor& x) {
  check_input(x.shape());
  Residual h{dropout_(add_positions(wte_(tape, x), tape.parameter(wpe_.weight))), {}};
  for (GptBlock& block : blocks_) h = recompute_ ? Residual{run_again(block, h.x), {}} : block(h);
  return linear(ln_f_(h.x, h.branch).norm, tape.weight(wte_.weight));
}

}  // namespace lockstep::models
