#include "lockstep/models/resnet.h"

#include <cmath>

#include "lockstep/autograd/recompute.h"
#include "lockstep/models/registry.h"

namespace lockstep::models {
namespace {

constexpr nn::Conv2dOptions without_bias(int stride, int padding) {
  return {.stride = stride, .padding = padding, .bias = false};
}

/// block(x); with `recompute` (model.recompute) only x is kept until the backward.
Var run_block(ResnetBlock& block, const Var& x, bool recompute) {
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

bool has_bottlenecks(const Resnet::Options& options) { return options.block == "bottleneck"; }

std::int64_t expansion_of(const Resnet::Options& options) {
  return has_bottlenecks(options) ? Bottleneck::expansion : 1;
}

}  // namespace

ResnetBlock::Shortcut::Shortcut(nn::Module& block, std::int64_t in, std::int64_t out, int stride,
                                const nn::BatchNormSettings& norm, int dims) {
  if (stride == 1 && in == out) return;
  conv_.emplace(block, "downsample.0", dims, in, out, 1, without_bias(stride, 0));
  bn_.emplace(block, "downsample.1", out, norm);
}

Var ResnetBlock::Shortcut::operator()(const Var& x) { return conv_ ? (*bn_)((*conv_)(x)) : x; }

BasicBlock::BasicBlock(nn::Module& parent, std::string_view name, std::int64_t in, std::int64_t out,
                       int stride, const nn::BatchNormSettings& norm, int dims)
    : ResnetBlock(parent, name),
      conv1_(*this, "conv1", dims, in, out, 3, without_bias(stride, 1)),
      bn1_(*this, "bn1", out, norm),
      conv2_(*this, "conv2", dims, out, out, 3, without_bias(1, 1)),
      bn2_(*this, "bn2", out, norm),
      shortcut_(*this, in, out, stride, norm, dims) {}

Var BasicBlock::forward(const Var& x) {
  const Var y = conv2_(bn1_.relu(conv1_(x)));
  return bn2_.relu(y, shortcut_(x));
}

Bottleneck::Bottleneck(nn::Module& parent, std::string_view name, std::int64_t in, std::int64_t width,
                       int stride, const nn::BatchNormSettings& norm, int dims)
    : ResnetBlock(parent, name),
      conv1_(*this, "conv1", dims, in, width, 1, without_bias(1, 0)),
      bn1_(*this, "bn1", width, norm),
      conv2_(*this, "conv2", dims, width, width, 3, without_bias(stride, 1)),
      bn2_(*this, "bn2", width, norm),
      conv3_(*this, "conv3", dims, width, expansion * width, 1, without_bias(1, 0)),
      bn3_(*this, "bn3", expansion * width, norm),
      shortcut_(*this, in, expansion * width, stride, norm, dims) {}

Var Bottleneck::forward(const Var& x) {
  const Var y = conv3_(bn2_.relu(conv2_(bn1_.relu(conv1_(x)))));
  return bn3_.relu(y, shortcut_(x));
}

std::vector<Option<Resnet::Options>> Resnet::Options::options() {
  using namespace option;
  using O = Options;
  return {
      numbers("blocks", &O::blocks, depths, "blocks of each stage", {.required = true}),
      number("width", &O::width, widths, "channels of the first stage; each stage after it doubles them",
             {.required = true}),
      number("in_channels", &O::in_channels, widths, "channels of an image", {.required = true}),
      number("classes", &O::classes, widths, "classes; of task.name = regression the values of a target",
             {.required = true, .peers = {"num_classes", "n_classes"}}),
      dims_option(&O::dims),
      choice("block", &O::block, {"basic", "bottleneck"},
             "two 3x3 convolutions, or a 3x3 between two 1x1 (resnet50)", {.peers = {"block_type"}}),
      choice("stem", &O::stem, {"3x3", "7x7"}, "first layer; 7x7 quarters the image"),
      choice("batch_norm", &O::batch_norm, {"plain", "sync"}, "statistics over the shard, or over all ranks",
             {.keeps_weights = true, .peers = {"sync_bn", "sync_batchnorm", "sync_batch_norm"}}),
      recompute_option(&O::recompute),
  };
}

/// Networks with bottlenecks differ in every block, so one message replaces a list of all their names.
const ForeignWeights Resnet::foreign{
    .relatives = {{.tensor = "layer1.0.conv3.weight",
                   .text =
                       "it holds bottleneck blocks (layer1.0.conv3.weight), as torchvision's resnet50 and "
                       "resnet101 do; set model.block = bottleneck"}}};

Resnet::Resnet(const Options& options, std::uint64_t seed)
    : Model(seed),
      in_channels_(with_few_stages(checked(options)).in_channels),
      dims_(static_cast<int>(options.dims)),
      recompute_(options.recompute),
      is_for_large_images_(options.stem == "7x7"),
      conv1_(*this, "conv1", dims_, options.in_channels, options.width, is_for_large_images_ ? 7 : 3,
             is_for_large_images_ ? without_bias(2, 3) : without_bias(1, 1)),
      bn1_(*this, "bn1", options.width, norm_settings(options)),
      blocks_(make_blocks(options, norm_settings(options))),
      fc_(*this, "fc", (expansion_of(options) * options.width) << (options.blocks.size() - 1),
          options.classes) {
  fc_.mark_as_head();
  // As torchvision; networks of basic blocks keep the bits of earlier runs.
  if (has_bottlenecks(options)) initialize_convolutions();
}

std::vector<std::unique_ptr<ResnetBlock>> Resnet::make_blocks(const Options& options,
                                                              const nn::BatchNormSettings& norm) {
  std::vector<std::unique_ptr<ResnetBlock>> blocks;
  std::int64_t in = options.width;
  for (std::size_t stage = 0; stage < options.blocks.size(); ++stage) {
    const std::int64_t width = options.width << stage;
    for (std::int64_t j = 0; j < options.blocks[stage]; ++j) {
      const int stride = stage > 0 && j == 0 ? 2 : 1;
      const std::string name = fmt::format("layer{}.{}", stage + 1, j);
      if (has_bottlenecks(options))
        blocks.push_back(std::make_unique<Bottleneck>(*this, name, in, width, stride, norm, dims_));
      else
        blocks.push_back(std::make_unique<BasicBlock>(*this, name, in, width, stride, norm, dims_));
      in = expansion_of(options) * width;
    }
  }
  return blocks;
}

void Resnet::initialize_convolutions() {
  for (Param* const param : state().params) {
    const Shape& shape = param->value.shape();
    if (shape.rank() != dims_ + 2) continue;
    const auto fan_out = static_cast<float>(shape.with(1, 1).numel());
    initialize(*param, nn::Init::normal(std::sqrt(2 / fan_out)), seed());
  }
}

void Resnet::check_input(const Shape& x) const {
  if (x.rank() == dims_ + 2 && x[1] == in_channels_) return;
  throw DataError(
      "a batch of shape {} does not fit the resnet's [batch, {}, {}]; set model.in_channels to the channels "
      "of the data and model.dims to 2 for images, 3 for volumes, or make its file again with the shape of "
      "its images (lockstep prepare --shape)",
      to_string(x), in_channels_, positions_text(dims_));
}

Var Resnet::forward(Tape& tape, const Batch& batch) { return fc_(*features(tape, batch)); }

std::optional<Var> Resnet::features(Tape& tape, const Batch& batch) {
  const Tensor& x = batch["x"];
  check_input(x.shape());
  Var h = bn1_.relu(conv1_(tape.batch(x)));
  if (is_for_large_images_)
    h = (dims_ == 2 ? max_pool2d : max_pool3d)(h, {.kernel = 3, .stride = 2, .padding = 1});
  for (const auto& block : blocks_) h = run_block(*block, h, recompute_);
  return flatten(dims_ == 2 ? global_avg_pool2d(h) : adaptive_avg_pool(h, {1, 1, 1}), 1);
}

void register_resnet(Registry& registry) { registry.add<Resnet>("resnet"); }

}  // namespace lockstep::models
