#include "lockstep/models/resnet.h"

#include "lockstep/autograd/recompute.h"
#include "lockstep/models/registry.h"

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

nn::BatchNormSettings norm_settings(const Resnet::Options& options) {
  return {.sync = options.batch_norm == "sync"};
}

/// The width doubles with each stage.
const Resnet::Options& with_few_stages(const Resnet::Options& options) {
  constexpr std::size_t max_stages = 16;
  if (options.blocks.size() > max_stages)
    throw UsageError("model.blocks names {} stages; at most {}", options.blocks.size(), max_stages);
  return options;
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

std::vector<Option<Resnet::Options>> Resnet::Options::options() {
  using namespace option;
  using O = Options;
  return {
      numbers("blocks", &O::blocks, depths, "blocks of each stage", {.required = true}),
      number("width", &O::width, widths, "channels of the first stage; each stage after it doubles them",
             {.required = true}),
      number("in_channels", &O::in_channels, widths, "channels of an image", {.required = true}),
      number("classes", &O::classes, widths, "classes",
             {.required = true, .peers = {"num_classes", "n_classes"}}),
      choice("stem", &O::stem, {"3x3", "7x7"}, "first layer; 7x7 quarters the image"),
      choice("batch_norm", &O::batch_norm, {"plain", "sync"}, "statistics over the shard, or over all ranks",
             {.keeps_weights = true, .peers = {"sync_bn", "sync_batchnorm", "sync_batch_norm"}}),
      recompute_option(&O::recompute),
  };
}

/// Larger networks of torchvision differ in every block, so one message replaces a list of all their names.
const ForeignWeights Resnet::foreign{
    .relatives = {{.tensor = "layer1.0.conv3.weight",
                   .text = "bottleneck blocks (resnet50/101/152) are not supported, and it holds them "
                           "(layer1.0.conv3.weight); take the weights of a resnet18 or resnet34"}}};

Resnet::Resnet(const Options& options, std::uint64_t seed)
    : Model(seed),
      in_channels_(with_few_stages(checked(options)).in_channels),
      recompute_(options.recompute),
      is_for_large_images_(options.stem == "7x7"),
      conv1_(*this, "conv1", options.in_channels, options.width, is_for_large_images_ ? 7 : 3,
             is_for_large_images_ ? without_bias(2, 3) : without_bias(1, 1)),
      bn1_(*this, "bn1", options.width, norm_settings(options)),
      blocks_(make_blocks(options, norm_settings(options))),
      fc_(*this, "fc", options.width << (options.blocks.size() - 1), options.classes) {
  fc_.mark_as_head();
}

std::vector<std::unique_ptr<BasicBlock>> Resnet::make_blocks(const Options& options,
                                                             const nn::BatchNormSettings& norm) {
  std::vector<std::unique_ptr<BasicBlock>> blocks;
  std::int64_t in = options.width;
  for (std::size_t stage = 0; stage < options.blocks.size(); ++stage) {
    const std::int64_t out = options.width << stage;
    for (std::int64_t j = 0; j < options.blocks[stage]; ++j) {
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

Var Resnet::forward(Tape& tape, const Batch& batch) { return fc_(*features(tape, batch)); }

std::optional<Var> Resnet::features(Tape& tape, const Batch& batch) {
  const Tensor& x = batch["x"];
  check_input(x.shape());
  Var h = bn1_.relu(conv1_(tape.batch(x)));
  if (is_for_large_images_) h = max_pool2d(h, {.kernel = 3, .stride = 2, .padding = 1});
  for (const auto& block : blocks_) h = run_block(*block, h, recompute_);
  return flatten(global_avg_pool2d(h), 1);
}

void register_resnet(Registry& registry) { registry.add<Resnet>("resnet"); }

}  // namespace lockstep::models
