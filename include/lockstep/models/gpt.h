// gpt: GPT-2 (Radford et al. 2019): pre-norm blocks, GELU, learned positions, head tied to the embedding.
#pragma once

#include "lockstep/models/model.h"
#include "lockstep/models/transformer.h"
#include "lockstep/nn/containers.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/norm.h"

namespace lockstep::models {

/// A block of GPT-2: attention and two linear layers, each after a layer norm.
class GptBlock : public nn::Layer<GptBlock> {
 public:
  GptBlock(nn::Module& parent, std::string_view name, std::int64_t channels, std::int64_t heads,
           double dropout, bool bias, ops::Activation activation);

  /// x, branch: [N, T, channels]; positions as in autograd/functions.h
  Residual forward(const Residual& input, const Tensor& positions);

 private:
  int heads_;
  ops::Activation activation_;
  nn::LayerNorm ln_1_;
  nn::Linear c_attn_, attn_c_proj_;
  nn::LayerNorm ln_2_;
  nn::Linear c_fc_, mlp_c_proj_;
  nn::Dropout attn_dropout_, mlp_dropout_;
};

/// Weights N(0, 0.02^2), the projections into the residual stream divided by sqrt(2 layers), biases 0.
/// Dropout after the embeddings and after both projections of a block. x: int64 [batch, time], time <=
/// context.
class Gpt final : public Model {
 public:
  static constexpr const char* task = "language";
  static const ForeignWeights foreign;  ///< GPT-2 as Hugging Face stores it
  struct Options {
    std::int64_t layers = 0, heads = 0, channels = 0;  ///< blocks; attention heads; width
    std::int64_t context = 0;                          ///< maximum tokens of a sequence
    std::int64_t vocab = 0;                            ///< size of the vocabulary
    double dropout = 0;                                ///< probability of zeroing an activation
    bool bias = true;                                  ///< of linear layers and norms
    std::string activation = "gelu_tanh";              ///< or "gelu_erf"
    bool recompute = false;  ///< keeps the inputs of blocks only; the backward computes the rest again

    static std::vector<Option<Options>> options();
  };
  Gpt(const Options& options, std::uint64_t seed);  ///< seed: of the initial parameters

  std::int64_t context() const override { return wpe_.weight.value.size(0); }
  const ForeignWeights* foreign_weights() const override { return &foreign; }
  std::vector<std::string> reads() const override { return {"x"}; }
  bool reads_positions() const override { return true; }
  std::int64_t classes() const override { return wte_.weight.value.size(0); }
  Shape sample_shape(std::int64_t) const override { return {context()}; }
  void check_input(const Shape& x) const override;
  Var forward(Tape& tape, const Batch& batch) override;
  std::optional<Head> head(Tape& tape, const Batch& batch) override;

 private:
  void initialize_weights(std::int64_t layers);

  nn::Embedding wte_, wpe_;
  nn::Dropout dropout_;
  bool recompute_;
  nn::List<GptBlock> blocks_;
  nn::LayerNorm ln_f_;
};

}  // namespace lockstep::models
