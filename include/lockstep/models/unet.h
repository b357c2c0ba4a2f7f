// unet: the U-Net of diffusion models, guided-diffusion's UNetModel (Dhariwal, Nichol 2021), with its
// arguments and its parameter names.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/models/model.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/norm.h"

namespace lockstep::models {

/// Layers at one resolution; see unet.cpp.
class UnetBlock;

/// A network from images to images, with a time and, if num_classes > 0, a class as further inputs. Level k
/// has channel_mult[k] model_channels channels and images of 1 / 2^k of the height and width. The last
/// convolution of every residual block, the projection of every attention and the output start at 0, all
/// others as in PyTorch's layers. For fields (task.name = regression) time_embed = false leaves out the time,
/// with the parameters time_embed.* and emb_layers.*; dims = 3 gives all kernels a depth.
class Unet final : public Model {
 public:
  static constexpr const char* task = "diffusion";
  struct Options {
    std::int64_t dims = 2;  ///< 3: of volumes
    std::int64_t image_size =
        0;  ///< of samples and of the task's data, 0: any; predict() takes any size that levels can halve
    bool time_embed = true;           ///< false: the network has no time
    bool class_logits = false;        ///< the result is [N, positions, out_channels], logits of positions
    std::int64_t in_channels = 0;     ///< of an image
    std::int64_t model_channels = 0;  ///< width, which channel_mult multiplies
    std::int64_t out_channels = 0;    ///< of the result
    std::int64_t num_res_blocks = 0;  ///< of each level on the way down; one more on the way up
    std::vector<std::int64_t> attention_resolutions{};  ///< downsampling factors: 2 is half the image
    std::vector<double> channel_mult{1, 2, 4, 8};       ///< of each level; the product is rounded down
    bool middle_attention = true;                       ///< an attention where the image is smallest
    std::int64_t norm_groups = 32;                      ///< groups of channels of group norms
    bool conv_resample = true;                          ///< a convolution where the image changes its size
    std::int64_t num_heads = 1;                         ///< attention heads
    std::int64_t num_heads_upsample = -1;               ///< on the way up; -1: num_heads
    std::int64_t num_head_channels = -1;  ///< channels of a head, in place of a number of heads; -1: unused
    bool use_scale_shift_norm =
        false;                     ///< the time scales and shifts normalised features; false: it is added
    bool resblock_updown = false;  ///< residual blocks change the image's size
    std::int64_t num_classes = 0;  ///< 0: no classes
    bool use_new_attention_order = false;  ///< channels of qkv are (3, heads, width), not (heads, 3, width)
    double dropout = 0;                    ///< probability of zeroing an activation
    bool recompute = false;  ///< keeps the inputs of blocks only; the backward computes the rest again

    static std::vector<Option<Options>> options();
  };
  /// Throws UsageError naming the key if image_size cannot be halved for every level, if norm_groups do not
  /// divide the channels of a level, if the heads of an attention do not, if no level has an attention's
  /// resolution, or if a class or scale-shift norm has no time to act by.
  Unet(const Options& options, std::uint64_t seed);
  ~Unet() override;

  /// x, and y with num_classes; t comes from the task.
  std::vector<std::string> reads() const override;
  Shape sample_shape(std::int64_t image_size) const override;
  std::int64_t classes() const override { return class_logits_ ? out_channels_ : 0; }
  std::int64_t input_classes() const override { return num_classes(); }
  void check_input(const Shape& x) const override;
  void check_target(const Shape& y, bool labels) const override;
  /// Calls predict() with the fields x, t (with time_embed), y (with num_classes) and has_class (if present).
  Var forward(Tape& tape, const Batch& batch) override;

  /// x: [N, in_channels, H, W] or, with dims = 3, [N, in_channels, D, H, W]; t: numbers [N], whole or not,
  /// with time_embed only; classes: int64 [N], with num_classes only. has_class: uint8 [N], 0 for samples
  /// without a class, whose embedding is zero; absent: all have a class. Result [N, out_channels, positions
  /// of x], plain; with class_logits, channels are last. Throws DataError naming both shapes if one does not
  /// fit.
  Var predict(const Var& x, const Tensor& t = {}, const Tensor& classes = {}, const Tensor& has_class = {});

  std::int64_t image_size() const { return image_size_; }               ///< of Options
  std::int64_t in_channels() const { return in_channels_; }             ///< of an image
  std::int64_t out_channels() const override { return out_channels_; }  ///< of the result
  /// Classes of the embedding; 0: the model takes no classes.
  std::int64_t num_classes() const { return label_emb_ ? label_emb_->weight.value.size(0) : 0; }

 private:
  class Builder;

  Var embedding(Tape& tape, const Tensor& t, const Tensor& classes, const Tensor& has_class);
  Var run(UnetBlock& block, const Var& x, const Var& skip, const Var& embedding);

  std::int64_t dims_, image_size_, in_channels_, out_channels_, model_channels_, levels_;
  bool class_logits_, recompute_;
  Tensor frequencies_;  // of the time's cosines and sines, [1, model_channels / 2], on the device of the last
                        // use
  std::optional<nn::Linear> time_embed_0_, time_embed_2_;
  std::optional<nn::Embedding> label_emb_;
  std::vector<std::unique_ptr<UnetBlock>> input_blocks_, output_blocks_;
  std::unique_ptr<UnetBlock> middle_block_;
  std::optional<nn::GroupNorm> out_norm_;
  std::optional<nn::ConvNd> out_conv_;
  std::vector<Var>
      skips_;  // of a pass: results of input blocks that no output block has read; keeps its capacity
};

}  // namespace lockstep::models
