// llama: the decoder of Llama 2 and 3, SmolLM, Qwen 2 and Qwen 3 (Touvron et al. 2023): pre-norm blocks with
// RMS norms, rotary positions, grouped queries and SwiGLU.
#pragma once

#include <optional>

#include "lockstep/models/model.h"
#include "lockstep/nn/containers.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/norm.h"

namespace lockstep::models {

/// Names are those of Hugging Face's LlamaForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM:
/// model.layers.0.self_attn.q_proj.weight. Weights N(0, 0.02^2), the projections into the residual stream
/// divided by sqrt(2 layers), biases 0, norms 1. x: int64 [batch, time], time <= context; positions, if the
/// batch has the field, as in autograd/functions.h.
class Llama final : public Model {
 public:
  static constexpr const char* task = "language";
  static const ForeignWeights foreign;  ///< Hugging Face's folders of these models
  struct Options {
    std::int64_t layers = 0, heads = 0, channels = 0;  ///< blocks; query heads; width
    std::int64_t kv_heads = 0;                         ///< heads of keys and values; 0: as many as of queries
    std::int64_t head_width = 0;                       ///< 0: channels / heads
    std::int64_t hidden = 0;                           ///< width between the layers of a block's SwiGLU
    std::int64_t context = 0;                          ///< maximum tokens of a sequence
    std::int64_t vocab = 0;                            ///< size of the vocabulary
    bool tied = false;                                 ///< the embedding is the head, too
    bool qkv_bias = false;                             ///< biases of queries, keys and values (Qwen 2)
    bool qk_norm = false;                              ///< RMS norms of each head's queries and keys (Qwen 3)
    double norm_eps = 1e-5;                            ///< added to the mean square in norms
    double rope_base = 10000;                          ///< RotaryOptions::base
    double rope_factor = 1, rope_low = 1, rope_high = 4;  ///< ops::RotaryScaling
    std::int64_t rope_context = 8192;                     ///< ops::RotaryScaling::context
    bool recompute = false;                               ///< keeps the inputs of blocks only

    static std::vector<Option<Options>> options();
    void check() const;  ///< Misfit
    /// head_width, or what follows from the width.
    std::int64_t width_of_head() const { return head_width > 0 ? head_width : channels / heads; }
    /// kv_heads, or heads.
    std::int64_t key_heads() const { return kv_heads > 0 ? kv_heads : heads; }
  };
  Llama(const Options& options, std::uint64_t seed);  ///< seed: of the initial parameters

  std::int64_t context() const override { return context_; }
  const ForeignWeights* foreign_weights() const override { return &foreign; }
  std::vector<std::string> reads() const override { return {"x"}; }
  bool reads_positions() const override { return true; }
  std::int64_t classes() const override { return embed_tokens_.weight.value.size(0); }
  Shape sample_shape(std::int64_t) const override { return {context_}; }
  void check_input(const Shape& x) const override;
  Var forward(Tape& tape, const Batch& batch) override;
  std::optional<Head> head(Tape& tape, const Batch& batch) override;

 private:
  /// Attention and a SwiGLU, each after a norm.
  class Block : public nn::Layer<Block> {
   public:
    Block(nn::Module& parent, std::string_view name, const Options& options);

    Var forward(const Var& x, const Tensor& positions);  ///< x: [N, T, channels]

   private:
    /// [N, T, heads * width], normalised and rotated.
    Var positioned(const Var& x, std::int64_t heads, std::optional<nn::RMSNorm>& norm,
                   const Tensor& positions) const;

    int heads_;
    std::int64_t key_heads_, width_;
    RotaryOptions rotary_;
    nn::RMSNorm input_layernorm_;
    nn::Linear q_proj_, k_proj_, v_proj_, o_proj_;
    std::optional<nn::RMSNorm> q_norm_, k_norm_;
    nn::RMSNorm post_attention_layernorm_;
    nn::Linear gate_proj_, up_proj_, down_proj_;
  };

  std::int64_t context_;
  bool recompute_;
  nn::Embedding embed_tokens_;
  nn::List<Block> blocks_;
  nn::RMSNorm norm_;
  std::optional<nn::Linear> lm_head_;
};

}  // namespace lockstep::models
