// resnet: basic-block residual network (He, Zhang, Ren, Sun 2016) with torchvision's names.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/models/model.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/norm.h"

namespace lockstep::models {

/// Two 3x3 convolutions, and a shortcut: the identity, or a 1x1 convolution where the shape changes.
class BasicBlock : public nn::Layer<BasicBlock> {
 public:
  /// in, out: channels; stride: of the first convolution.
  BasicBlock(nn::Module& parent, std::string_view name, std::int64_t in, std::int64_t out, int stride,
             const nn::BatchNormSettings& norm);

  Var forward(const Var& x);

 private:
  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  nn::Conv2d conv2_;
  nn::BatchNorm2d bn2_;
  std::optional<nn::Conv2d> downsample_conv_;
  std::optional<nn::BatchNorm2d> downsample_bn_;
};

/// Stage k has width * 2^k channels; stages after the first halve the image. The stem "3x3" keeps the size of
/// the image, "7x7" with its max pool quarters it (blocks 2 2 2 2 of width 64: ResNet-18). x: [N,
/// in_channels, H, W].
class Resnet final : public Model {
 public:
  static constexpr const char* task = "classification";
  static const ForeignWeights foreign;  ///< torchvision's weights, which have the same names
  struct Options {
    std::vector<std::int64_t> blocks{};         ///< number of blocks of each stage
    std::int64_t width = 0;                     ///< channels of the first stage
    std::int64_t in_channels = 0, classes = 0;  ///< channels of an image; classes of the output
    std::string stem = "3x3";                   ///< or "7x7"
    std::string batch_norm = "plain";           ///< or "sync"
    bool recompute = false;  ///< keeps the inputs of blocks only; the backward computes the rest again

    static std::vector<Option<Options>> options();
  };
  Resnet(const Options& options, std::uint64_t seed);  ///< seed: of the initial parameters

  const ForeignWeights* foreign_weights() const override { return &foreign; }
  std::vector<std::string> reads() const override { return {"x"}; }
  std::int64_t classes() const override { return fc_.weight.value.size(0); }
  Shape sample_shape(std::int64_t image_size) const override {
    return {in_channels_, image_size, image_size};
  }
  void check_input(const Shape& x) const override;
  Var forward(Tape& tape, const Batch& batch) override;
  std::optional<Var> features(Tape& tape, const Batch& batch) override;

 private:
  std::vector<std::unique_ptr<BasicBlock>> make_blocks(const Options& options,
                                                       const nn::BatchNormSettings& norm);

  std::int64_t in_channels_;
  bool recompute_;
  bool is_for_large_images_;  ///< model.stem = 7x7
  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  std::vector<std::unique_ptr<BasicBlock>> blocks_;
  nn::Linear fc_;
};

}  // namespace lockstep::models
