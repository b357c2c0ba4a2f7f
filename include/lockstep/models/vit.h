// vit: Vision Transformer (Dosovitskiy et al. 2021) with torchvision's names.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/models/model.h"
#include "lockstep/models/transformer.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/norm.h"

namespace lockstep::models {

/// A block of a vit: self-attention and two linear layers with GELU between, each after a layer norm.
class VitBlock : public nn::Layer<VitBlock> {
 public:
  VitBlock(nn::Module& parent, std::string_view name, std::int64_t channels, std::int64_t heads,
           std::int64_t mlp_channels, double dropout);

  Residual forward(const Residual& input);  ///< x, branch: [N, T, channels]

 private:
  nn::LayerNorm ln_1_;
  nn::MultiheadAttention self_attention_;
  nn::Dropout dropout_;
  nn::LayerNorm ln_2_;
  nn::Linear mlp_0_;
  nn::Dropout mlp_2_;
  nn::Linear mlp_3_;
  nn::Dropout mlp_4_;
};

/// The tokens of an image are a class token and its patches; the class token's result is classified. Initial
/// values and places of dropout are those of torchvision. Its vit_b_16: image_size 224, patch 16, 12 layers,
/// 12 heads, channels 768, mlp_channels 3072. x: [N, in_channels, image_size, image_size].
class Vit final : public Model {
 public:
  static constexpr const char* task = "classification";
  static const ForeignWeights foreign;  ///< torchvision's weights
  struct Options {
    std::int64_t image_size = 0, patch = 0;            ///< height and width of an image and of a patch
    std::int64_t layers = 0, heads = 0, channels = 0;  ///< blocks; attention heads; width
    std::int64_t mlp_channels = 0;                     ///< between the two linear layers of a block
    std::int64_t in_channels = 0, classes = 0;         ///< channels of an image; classes of the output
    double dropout = 0;                                ///< probability of zeroing an activation
    bool recompute = false;  ///< keeps the inputs of blocks only; the backward computes the rest again

    static std::vector<Option<Options>> options();
  };
  /// seed: of the initial parameters. Throws UsageError if patches do not divide an image, or heads the
  /// channels.
  Vit(const Options& options, std::uint64_t seed);

  const ForeignWeights* foreign_weights() const override { return &foreign; }
  std::vector<std::string> reads() const override { return {"x"}; }
  std::int64_t classes() const override { return head_.weight.value.size(0); }
  Shape sample_shape(std::int64_t) const override { return {in_channels_, image_size_, image_size_}; }
  void check_input(const Shape& x) const override;
  Var forward(Tape& tape, const Batch& batch) override;
  std::optional<Var> features(Tape& tape, const Batch& batch) override;

 private:
  struct Encoder : nn::Module {
    Encoder(nn::Module& parent, const Options& options);
    std::vector<std::unique_ptr<VitBlock>> make_layers(const Options& options);

    nn::Parameter pos_embedding;  // [1, tokens, channels]
    nn::Dropout dropout;
    std::vector<std::unique_ptr<VitBlock>> layers;
    nn::LayerNorm ln;
  };

  std::int64_t image_size_, in_channels_;
  bool recompute_;
  nn::Parameter class_token_;  // [1, 1, channels]
  nn::Conv2d conv_proj_;
  Encoder encoder_;
  nn::Linear head_;
};

}  // namespace lockstep::models
