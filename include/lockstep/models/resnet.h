// resnet: residual network (He, Zhang, Ren, Sun 2016) of basic or bottleneck blocks with torchvision's names.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/models/model.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/norm.h"

namespace lockstep::models {

/// A block of a resnet: relu(branch(x) + shortcut(x)).
class ResnetBlock : public nn::Layer<ResnetBlock> {
 public:
  using Layer::Layer;

  virtual Var forward(const Var& x) = 0;  ///< x: images or volumes

 protected:
  /// The identity, or a 1x1 convolution where the shape changes.
  class Shortcut {
   public:
    /// Parameters of the block: "downsample.0" and "downsample.1", where the shape changes.
    Shortcut(nn::Module& block, std::int64_t in, std::int64_t out, int stride,
             const nn::BatchNormSettings& norm, int dims);

    /// What the block adds to its last convolution.
    Var operator()(const Var& x);

   private:
    std::optional<nn::ConvNd> conv_;
    std::optional<nn::BatchNorm2d> bn_;
  };
};

/// Two convolutions, 3x3 or 3x3x3.
class BasicBlock final : public ResnetBlock {
 public:
  /// in, out: channels; stride: of the first convolution; dims: 2 for images, 3 for volumes.
  BasicBlock(nn::Module& parent, std::string_view name, std::int64_t in, std::int64_t out, int stride,
             const nn::BatchNormSettings& norm, int dims = 2);

  Var forward(const Var& x) override;

 private:
  nn::ConvNd conv1_;
  nn::BatchNorm2d bn1_;
  nn::ConvNd conv2_;
  nn::BatchNorm2d bn2_;
  Shortcut shortcut_;
};

/// A 1x1 convolution to a quarter of the result's channels, a 3x3, and a 1x1 convolution to the result's.
class Bottleneck final : public ResnetBlock {
 public:
  static constexpr std::int64_t expansion = 4;  ///< channels of the result for each channel of the 3x3

  /// in: channels; width: of the 3x3 convolution, which has the stride (as torchvision's, "ResNet v1.5").
  Bottleneck(nn::Module& parent, std::string_view name, std::int64_t in, std::int64_t width, int stride,
             const nn::BatchNormSettings& norm, int dims = 2);

  Var forward(const Var& x) override;

 private:
  nn::ConvNd conv1_;
  nn::BatchNorm2d bn1_;
  nn::ConvNd conv2_;
  nn::BatchNorm2d bn2_;
  nn::ConvNd conv3_;
  nn::BatchNorm2d bn3_;
  Shortcut shortcut_;
};

/// Blocks of stage k have convolutions of width * 2^k channels, which a bottleneck's result has four times;
/// stages after the first halve the image. The stem "3x3" keeps the size of the image, "7x7" with its max
/// pool quarters it. With this stem and width 64, torchvision's resnet18 has the basic blocks 2 2 2 2,
/// resnet34 3 4 6 3; resnet50 has the bottlenecks 3 4 6 3, resnet101 3 4 23 3. A resnet of bottlenecks has
/// torchvision's first values (of convolutions: He et al. 2015, by fan-out), one of basic blocks those of
/// PyTorch's layers. x: [N, in_channels, H, W]. With dims = 3 all kernels, strides and pools have a third
/// direction, and x is [N, in_channels, D, H, W]; names stay. The outputs are logits of classes, or values.
class Resnet final : public Model {
 public:
  static constexpr const char* task = "classification";
  static const ForeignWeights foreign;  ///< torchvision's weights, which have the same names
  struct Options {
    std::vector<std::int64_t> blocks{};         ///< number of blocks of each stage
    std::int64_t width = 0;                     ///< channels of the first stage
    std::int64_t in_channels = 0, classes = 0;  ///< channels of an image; classes or values of the output
    std::int64_t dims = 2;                      ///< 3: of volumes
    std::string block = "basic";                ///< or "bottleneck"
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
    return dims_ == 2 ? Shape{in_channels_, image_size, image_size}
                      : Shape{in_channels_, image_size, image_size, image_size};
  }
  void check_input(const Shape& x) const override;
  Var forward(Tape& tape, const Batch& batch) override;
  std::optional<Var> features(Tape& tape, const Batch& batch) override;

 private:
  std::vector<std::unique_ptr<ResnetBlock>> make_blocks(const Options& options,
                                                        const nn::BatchNormSettings& norm);
  void initialize_convolutions();

  std::int64_t in_channels_;
  int dims_;
  bool recompute_;
  bool is_for_large_images_;  ///< model.stem = 7x7
  nn::ConvNd conv1_;
  nn::BatchNorm2d bn1_;
  std::vector<std::unique_ptr<ResnetBlock>> blocks_;
  nn::Linear fc_;
};

}  // namespace lockstep::models
