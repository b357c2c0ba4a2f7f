#include "models/resnet.h"

#include "lockstep/autograd/recompute.h"

namespace lockstep::models {
namespace {

constexpr nn::Conv2dOptions without_bias(int stride, int padding) {
  return {.stride = stride, .padding = padding, .bias = false};
}

/// block(x); with `recompute` (model.recompute) only x is kept until the backward.
Var run_block(BasicBlock& block, const Var& x, bool recompute) {
  if (!recompute) return block(x);
  return recomputed(x.tape(), [&block, x] { return block(x); });
}

nn::BatchNormSettings norm_settings(const ModelConfig& config) {
  return {.sync = config.batch_norm == "sync"};
}

}  // namespace

BasicBlock::BasicBlock(nn::Module& parent, std::string_view name, std::int64_t in, std::int64_t out,
                       int stride, const nn::BatchNormSettings& norm)
    : Layer(parent, name),
      conv1_(*this, "conv1", in, out, 3, without_bias(stride, 1)),
      bn1_(*this, "bn1", out, norm),
      conv2_(*this, "conv2", out, out, 3, without_bias(1, 1)),
      bn2_(*this, "bn2", out, norm) {
  if (stride == 1 && in == out) return;
  downsample_conv_.emplace(*this, "downsample.0", in, out, 1, without_bias(stride, 0));
  downsample_bn_.emplace(*this, "downsample.1", out, norm);
}

Var BasicBlock::forward(const Var& x) {
  const Var y = conv2_(bn1_.relu(conv1_(x)));
  return bn2_.relu(y, downsample_conv_ ? (*downsample_bn_)((*downsample_conv_)(x)) : x);
}

Resnet::Resnet(const ModelConfig& config, std::uint64_t seed)
    : Model(seed),
      in_channels_(config.in_channels),
      recompute_(config.recompute),
      is_for_large_images_(config.stem == "7x7"),
      conv1_(*this, "conv1", config.in_channels, config.width, is_for_large_images_ ? 7 : 3,
             is_for_large_images_ ? without_bias(2, 3) : without_bias(1, 1)),
      bn1_(*this, "bn1", config.width, norm_settings(config)),
      blocks_(make_blocks(config, norm_settings(config))),
      fc_(*this, "fc", config.width << (config.blocks.size() - 1), config.classes) {
  fc_.be_head();
}

std::vector<std::unique_ptr<BasicBlock>> Resnet::make_blocks(const ModelConfig& config,
                                                             const nn::BatchNormSettings& norm) {
  std::vector<std::unique_ptr<BasicBlock>> blocks;
  std::int64_t in = config.width;
  for (std::size_t stage = 0; stage < config.blocks.size(); ++stage) {
    const std::int64_t out = config.width << stage;
    for (std::int64_t j = 0; j < config.blocks[stage]; ++j) {
      const int stride = stage > 0 && j == 0 ? 2 : 1;
      blocks.push_back(std::make_unique<BasicBlock>(*this, fmt::format("layer{}.{}", stage + 1, j),
                                                    j == 0 ? in : out, out, stride, norm));
    }
    in = out;
  }
  return blocks;
}

void Resnet::check_input(const Shape& x) const {
  if (x.rank() == 4 && x[1] == in_channels_) return;
  throw DataError(
      "a batch of shape {} does not fit the resnet's [batch, {}, height, width]; set model.in_channels to "
      "the channels of the data, or make its file again with the shape of its images (lockstep prepare "
      "--shape)",
      to_string(x), in_channels_);
}

Var Resnet::forward(Tape& tape, const Tensor& x) {
  check_input(x.shape());
  Var h = bn1_.relu(conv1_(tape.batch(x)));
  if (is_for_large_images_) h = max_pool2d(h, {.kernel = 3, .stride = 2, .padding = 1});
  for (const auto& block : blocks_) h = run_block(*block, h, recompute_);
  return fc_(flatten(global_avg_pool2d(h), 1));
}

}  // namespace lockstep::models
