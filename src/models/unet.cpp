#include "lockstep/models/unet.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string_view>
#include <utility>

#include "lockstep/autograd/recompute.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/models/registry.h"

namespace lockstep::models {

/// A convolution, a residual block, an attention, or a change of size.
class UnetLayer {
 public:
  virtual ~UnetLayer() = default;
  /// x: images or volumes; embedding: activated, [N, 4 model_channels]; absent without a time.
  virtual Var run(const Var& x, const Var& embedding) = 0;
};

namespace {

using Options = Unet::Options;

constexpr double longest_period = 10000;  // of the cosines and sines of the time

constexpr nn::Conv2dOptions same_size{.padding = 1};  // with a kernel of 3

int dims_of(const Options& options) { return static_cast<int>(options.dims); }
int groups_of(const Options& options) { return static_cast<int>(options.norm_groups); }

/// The layer, which a unet without a time lacks.
std::optional<nn::Linear> linear_if(bool has_time, nn::Module& parent, std::string_view name, std::int64_t in,
                                    std::int64_t out) {
  if (!has_time) return std::nullopt;
  return std::optional<nn::Linear>(std::in_place, parent, name, in, out);
}

/// How a layer changes the extents of an image.
enum class Resize { none, down, up };

Var resized(const Var& x, Resize how) {
  const bool of_volumes = x.shape().rank() == 5;
  switch (how) {
    case Resize::down:
      return (of_volumes ? avg_pool3d : avg_pool2d)(x, {.kernel = 2, .stride = 2});
    case Resize::up:
      return (of_volumes ? upsample_nearest3d : upsample_nearest2d)(x, 2);
    default:
      return x;
  }
}

template <class Convolution>
void begin_at_zero(Convolution& convolution, std::uint64_t seed) {
  nn::initialize(convolution.weight, nn::Init::constant(0), seed);
  nn::initialize(*convolution.bias, nn::Init::constant(0), seed);
}

class Convolution final : public UnetLayer {
 public:
  Convolution(nn::Module& parent, std::string_view name, const Options& options, std::int64_t in,
              std::int64_t out)
      : conv_(parent, name, dims_of(options), in, out, 3, same_size) {}

  Var run(const Var& x, const Var&) override { return conv_(x); }

 private:
  nn::ConvNd conv_;
};

class Downsample final : public nn::Module, public UnetLayer {
 public:
  Downsample(nn::Module& parent, std::string_view name, const Options& options, std::int64_t channels)
      : Module(parent, name) {
    if (options.conv_resample)
      op_.emplace(*this, "op", dims_of(options), channels, channels, 3,
                  nn::Conv2dOptions{.stride = 2, .padding = 1});
  }

  Var run(const Var& x, const Var&) override { return op_ ? (*op_)(x) : resized(x, Resize::down); }

 private:
  std::optional<nn::ConvNd> op_;
};

class Upsample final : public nn::Module, public UnetLayer {
 public:
  Upsample(nn::Module& parent, std::string_view name, const Options& options, std::int64_t channels)
      : Module(parent, name) {
    if (options.conv_resample)
      conv_.emplace(*this, "conv", dims_of(options), channels, channels, 3, same_size);
  }

  Var run(const Var& x, const Var&) override {
    const Var larger = resized(x, Resize::up);
    return conv_ ? (*conv_)(larger) : larger;
  }

 private:
  std::optional<nn::ConvNd> conv_;
};

/// Two convolutions with group norms that depend on the time, and a shortcut: the identity or a 1x1
/// convolution.
class ResBlock final : public nn::Layer<ResBlock>, public UnetLayer {
 public:
  ResBlock(nn::Module& parent, std::string_view name, const Options& options, std::int64_t in,
           std::int64_t out, Resize resize)
      : Layer(parent, name),
        scale_shift_(options.use_scale_shift_norm),
        resize_(resize),
        in_norm_(*this, "in_layers.0", groups_of(options), in),
        in_conv_(*this, "in_layers.2", dims_of(options), in, out, 3, same_size),
        emb_linear_(linear_if(options.time_embed, *this, "emb_layers.1", 4 * options.model_channels,
                              scale_shift_ ? 2 * out : out)),
        out_norm_(*this, "out_layers.0", groups_of(options), out),
        dropout_(*this, "out_layers.2", static_cast<float>(options.dropout)),
        out_conv_(*this, "out_layers.3", dims_of(options), out, out, 3, same_size) {
    begin_at_zero(out_conv_, seed());
    if (in != out) skip_connection_.emplace(*this, "skip_connection", dims_of(options), in, out, 1);
  }

  Var forward(const Var& x, const Var& embedding) {
    const Var h = in_conv_(resized(in_norm_.adaptive(x, {.silu = true}), resize_)),
              time = emb_linear_ ? (*emb_linear_)(embedding) : Var{};
    const Var normal = out_norm_.adaptive(h, {.addend = scale_shift_ ? Var{} : time,
                                              .scale_shift = scale_shift_ ? time : Var{},
                                              .silu = true,
                                              .dropout = dropout_.p(),
                                              .dropout_purpose = dropout_.purpose()});
    const Var identity = resized(x, resize_);
    return out_conv_(normal, skip_connection_ ? (*skip_connection_)(identity) : identity);
  }
  Var run(const Var& x, const Var& embedding) override { return (*this)(x, embedding); }

 private:
  bool scale_shift_;
  Resize resize_;
  nn::GroupNorm in_norm_;
  nn::ConvNd in_conv_;
  std::optional<nn::Linear> emb_linear_;
  nn::GroupNorm out_norm_;
  nn::Dropout dropout_;
  nn::ConvNd out_conv_;
  std::optional<nn::ConvNd> skip_connection_;
};

/// Every position attends to all positions of its image. The 1x1 convolutions are products of rows, because
/// attention needs the channels of a position side by side.
class Attention final : public nn::Layer<Attention>, public UnetLayer {
 public:
  Attention(nn::Module& parent, std::string_view name, const Options& options, std::int64_t channels,
            std::int64_t heads)
      : Layer(parent, name),
        heads_(static_cast<int>(heads)),
        new_order_(options.use_new_attention_order),
        norm_(*this, "norm", groups_of(options), channels),
        qkv_(*this, "qkv", channels, 3 * channels, 1),
        proj_out_(*this, "proj_out", channels, channels, 1) {
    begin_at_zero(proj_out_, seed());
  }

  Var forward(const Var& given) {
    Tape& tape = given.tape();
    const std::int64_t channels = given.shape()[1];
    const Var x = to_channel_block(given, static_cast<int>(channels));
    const auto matrix = [channels](const Var& weight) {
      return reshape(weight, {weight.shape()[0], channels});
    };
    // On a CPU thirds are faster. A GPU reads either order.
    const bool reorder = !new_order_ && tape.backend().device() == Device::cpu();
    const Var weight = matrix(tape.weight(qkv_.weight)), rows = to_sequence(norm_.adaptive(x, {}));
    const Var qkv = reorder ? linear(rows, thirds(weight), thirds(tape.parameter(*qkv_.bias)))
                            : linear(rows, weight, tape.bias(*qkv_.bias));
    const Var y = attention(qkv, heads_, false, new_order_ || reorder ? HeadOrder::thirds : HeadOrder::heads);
    const Var projected = linear(y, matrix(tape.weight(proj_out_.weight)), tape.bias(*proj_out_.bias));
    return x + from_sequence(projected, x.shape().extents().subspan(2));
  }
  Var run(const Var& x, const Var&) override { return (*this)(x); }

 private:
  /// Rows in the order (heads, 3, width) as (3, heads, width). Reordering a parameter is cheaper than
  /// reordering its results.
  Var thirds(const Var& rows) const {
    if (heads_ == 1) return rows;
    const std::int64_t count = rows.shape()[0], columns = rows.shape().numel() / count;
    return reshape(permute(reshape(rows, {heads_, 3, count / (3 * heads_), columns}), {1, 0, 2, 3}),
                   rows.shape());
  }

  int heads_;
  bool new_order_;
  nn::GroupNorm norm_;
  nn::Conv1d qkv_, proj_out_;
};

/// The channels of each level.
std::vector<std::int64_t> level_channels(const Options& options) {
  if (options.channel_mult.empty()) throw UsageError("model.channel_mult names no level; give at least one");
  std::vector<std::int64_t> channels;
  for (const double mult : options.channel_mult) {
    const double product = mult * static_cast<double>(options.model_channels);
    channels.push_back(static_cast<std::int64_t>(std::min(product, 1e15)));
    if (channels.back() < options.norm_groups || channels.back() % options.norm_groups != 0 ||
        static_cast<double>(channels.back()) > widths.high)
      throw UsageError(
          "model.channel_mult: {} times model.model_channels = {} gives {} channels; group norm needs a "
          "multiple of {} (model.norm_groups)",
          mult, options.model_channels, channels.back(), options.norm_groups);
  }
  // Images of any size are at most as large as the largest.
  const int halvings =
      options.image_size == 0 ? 30 : std::countr_zero(static_cast<std::uint64_t>(options.image_size));
  const auto max_levels = static_cast<std::size_t>(halvings) + 1;
  if (channels.size() > max_levels)
    throw UsageError(
        "model.channel_mult names {} levels, but model.image_size = {} can be halved {} times only: {} "
        "levels",
        channels.size(), options.image_size, halvings, max_levels);
  return channels;
}

/// UsageError for options that a unet without a time would ignore.
void check_time(const Options& options) {
  if (options.time_embed && options.image_size == 0) throw UsageError("model.image_size is missing");
  if (options.time_embed) return;
  const char* const key = options.num_classes > 0        ? "num_classes"
                          : options.use_scale_shift_norm ? "use_scale_shift_norm"
                                                         : nullptr;
  if (key) throw UsageError("model.{} acts by the time; set model.time_embed = true, or remove it", key);
}

/// UsageError for a factor that no level has, which guided-diffusion ignores.
void check_attention(const Options& options, std::int64_t levels) {
  std::vector<std::int64_t> factors;
  for (std::int64_t level = 0; level < levels; ++level) factors.push_back(std::int64_t{1} << level);
  const auto is_level = [&](std::int64_t factor) {
    return std::ranges::find(factors, factor) != factors.end();
  };
  for (const std::int64_t factor : options.attention_resolutions) {
    if (is_level(factor)) continue;
    const bool is_size =
        options.image_size > 0 && options.image_size % factor == 0 && is_level(options.image_size / factor);
    throw UsageError(
        "model.attention_resolutions: no level has the downsampling factor {}; those of model.channel_mult "
        "have {}{}",
        factor, fmt::join(factors, ", "),
        is_size ? fmt::format(" (images of {0} x {0}: {1})", factor, options.image_size / factor) : "");
  }
}

/// Heads of an attention over `channels`.
std::int64_t heads_of(const Options& options, bool upwards, std::int64_t channels) {
  const auto refuse = [channels](const char* key, std::int64_t value) {
    throw UsageError("model.{} = {} does not divide the {} channels of an attention", key, value, channels);
  };
  if (options.num_head_channels != -1) {
    if (options.num_head_channels < 1 || channels % options.num_head_channels != 0)
      refuse("num_head_channels", options.num_head_channels);
    return channels / options.num_head_channels;
  }
  const bool own = upwards && options.num_heads_upsample != -1;
  const std::int64_t heads = own ? options.num_heads_upsample : options.num_heads;
  if (heads < 1 || channels % heads != 0) refuse(own ? "num_heads_upsample" : "num_heads", heads);
  return heads;
}

}  // namespace

/// Layers one after another, numbered "0", "1" ....
class UnetBlock : public nn::Module {
 public:
  using nn::Module::Module;

  template <class L, class... Arguments>
  void add(const Arguments&... arguments) {
    layers_.push_back(std::make_unique<L>(*this, fmt::format("{}", layers_.size()), arguments...));
  }
  Var run(const Var& x, const Var& embedding) {
    Var y = x;
    for (const auto& layer : layers_) y = layer->run(y, embedding);
    return y;
  }

 private:
  std::vector<std::unique_ptr<UnetLayer>> layers_;
};

/// Adds blocks in the order in which they run.
class Unet::Builder {
 public:
  Builder(Unet& unet, const Options& options) : unet_(unet), options_(options) {}

  void build(const std::vector<std::int64_t>& levels) {
    channels_ = levels.front();
    new_block(unet_.input_blocks_, "input_blocks")
        .add<Convolution>(options_, options_.in_channels, channels_);
    skips_.push_back(channels_);
    for (std::size_t level = 0; level < levels.size(); ++level) {
      for (std::int64_t i = 0; i < options_.num_res_blocks; ++i) {
        UnetBlock& block = new_block(unet_.input_blocks_, "input_blocks");
        add_res_block(block, channels_, levels[level]);
        if (attends(level)) add_attention(block, false);
        skips_.push_back(channels_);
      }
      if (level + 1 == levels.size()) break;
      add_resize<Downsample>(new_block(unet_.input_blocks_, "input_blocks"), Resize::down);
      skips_.push_back(channels_);
    }

    unet_.middle_block_ = std::make_unique<UnetBlock>(unet_, "middle_block");
    UnetBlock& middle = *unet_.middle_block_;
    add_res_block(middle, channels_, channels_);
    if (options_.middle_attention) add_attention(middle, false);
    add_res_block(middle, channels_, channels_);

    for (std::size_t level = levels.size(); level-- > 0;) {
      for (std::int64_t i = 0; i <= options_.num_res_blocks; ++i) {
        UnetBlock& block = new_block(unet_.output_blocks_, "output_blocks");
        add_res_block(block, channels_ + skips_.back(), levels[level]);
        skips_.pop_back();
        if (attends(level)) add_attention(block, true);
        if (level > 0 && i == options_.num_res_blocks) add_resize<Upsample>(block, Resize::up);
      }
    }
    unet_.out_norm_.emplace(unet_, "out.0", groups_of(options_), channels_);
    unet_.out_conv_.emplace(unet_, "out.2", dims_of(options_), channels_, options_.out_channels, 3,
                            same_size);
  }

 private:
  UnetBlock& new_block(std::vector<std::unique_ptr<UnetBlock>>& blocks, const char* list) {
    return *blocks.emplace_back(
        std::make_unique<UnetBlock>(unet_, fmt::format("{}.{}", list, blocks.size())));
  }
  void add_res_block(UnetBlock& block, std::int64_t in, std::int64_t out) {
    block.add<ResBlock>(options_, in, out, Resize::none);
    channels_ = out;
  }
  void add_attention(UnetBlock& block, bool upwards) {
    block.add<Attention>(options_, channels_, heads_of(options_, upwards, channels_));
  }
  template <class Plain>
  void add_resize(UnetBlock& block, Resize resize) {
    if (options_.resblock_updown)
      block.add<ResBlock>(options_, channels_, channels_, resize);
    else
      block.add<Plain>(options_, channels_);
  }
  bool attends(std::size_t level) const {
    return std::ranges::count(options_.attention_resolutions, std::int64_t{1} << level) > 0;
  }

  Unet& unet_;
  const Options& options_;
  std::int64_t channels_ = 0;
  std::vector<std::int64_t> skips_;  // channels of the input blocks' results that no output block has read
};

std::vector<Option<Unet::Options>> Unet::Options::options() {
  using namespace option;
  using O = Options;
  constexpr Range or_unset = Range::from(-1, 2147483647);
  return {
      dims_option(&O::dims),
      number("image_size", &O::image_size, Range::from(0, 2147483647),
             "extent of an image in each direction, which levels halve; 0: any, without a time",
             {.unit = "pixels", .keeps_weights = true, .peers = {"resolution", "img_size"}}),
      flag("time_embed", &O::time_embed,
           "a time is an input, field t (of diffusion: its step); false: fields to fields"),
      flag("class_logits", &O::class_logits,
           "the result is logits of each position, [N, positions, out_channels], of task.name = "
           "classification "
           "with labels y [N, positions]"),
      number("in_channels", &O::in_channels, widths, "channels of an image", {.required = true}),
      number("model_channels", &O::model_channels, widths, "base width, which channel_mult multiplies",
             {.required = true, .peers = {"num_channels", "base_channels", "dim"}}),
      number("out_channels", &O::out_channels, widths,
             "channels of the result: those of an image, or twice as many with a learned variance",
             {.required = true}),
      number("num_res_blocks", &O::num_res_blocks, depths, "residual blocks of each level; upwards one more",
             {.required = true, .peers = {"layers_per_block"}}),
      numbers("attention_resolutions", &O::attention_resolutions, widths,
              "levels with attention, by downsampling factor: 1 the whole image, 2 half of it, 4 ..."),
      numbers("channel_mult", &O::channel_mult, Range::above(0, 1e6),
              "channels of each level, in units of model_channels", {.peers = {"dim_mults", "ch_mult"}}),
      flag("middle_attention", &O::middle_attention, "an attention on the smallest images"),
      number("norm_groups", &O::norm_groups, widths, "groups of channels of the group norms",
             {.peers = {"norm_num_groups", "num_groups"}}),
      flag("conv_resample", &O::conv_resample,
           "convolutions where the size changes, not only pooling and copies"),
      number("num_heads", &O::num_heads, widths, "attention heads"),
      number("num_heads_upsample", &O::num_heads_upsample, or_unset,
             "attention heads on the way up; -1: num_heads"),
      number("num_head_channels", &O::num_head_channels, or_unset,
             "channels of a head, in place of num_heads; -1: num_heads is used"),
      flag("use_scale_shift_norm", &O::use_scale_shift_norm,
           "the time scales and shifts the normalised features, in place of being added"),
      flag("resblock_updown", &O::resblock_updown, "residual blocks change the image's size"),
      number("num_classes", &O::num_classes, Range::from(0, 2147483647), "classes; 0: none",
             {.peers = {"classes", "class_cond"}}),
      flag("use_new_attention_order", &O::use_new_attention_order,
           "channels of qkv are ordered (3, heads, width), not (heads, 3, width)"),
      number("dropout", &O::dropout, Range::below(0, 1), "probability of zeroing an activation",
             {.keeps_weights = true}),
      recompute_option(&O::recompute),
  };
}

Unet::Unet(const Options& options, std::uint64_t seed)
    : Model(seed),
      dims_(checked(options).dims),
      image_size_(options.image_size),
      in_channels_(options.in_channels),
      out_channels_(options.out_channels),
      model_channels_(options.model_channels),
      levels_(static_cast<std::int64_t>(level_channels(options).size())),
      class_logits_(options.class_logits),
      recompute_(options.recompute),
      time_embed_0_(
          linear_if(options.time_embed, *this, "time_embed.0", model_channels_, 4 * model_channels_)),
      time_embed_2_(
          linear_if(options.time_embed, *this, "time_embed.2", 4 * model_channels_, 4 * model_channels_)) {
  check_time(options);
  if (options.num_classes > 0)
    label_emb_.emplace(*this, "label_emb", options.num_classes, 4 * model_channels_);
  check_attention(options, levels_);
  Builder(*this, options).build(level_channels(options));
  begin_at_zero(*out_conv_, seed);
  out_conv_->weight.role = out_conv_->bias->role = Param::Role::head;
}

Unet::~Unet() = default;

std::vector<std::string> Unet::reads() const {
  return label_emb_ ? std::vector<std::string>{"x", "y"} : std::vector<std::string>{"x"};
}

Shape Unet::sample_shape(std::int64_t image_size) const {
  const std::int64_t extent = image_size_ > 0 ? image_size_ : image_size;
  return dims_ == 2 ? Shape{in_channels_, extent, extent} : Shape{in_channels_, extent, extent, extent};
}

void Unet::check_input(const Shape& x) const {
  const std::int64_t factor = std::int64_t{1} << (levels_ - 1);
  const auto halves = [factor](std::int64_t extent) { return extent % factor == 0; };
  if (x.rank() == dims_ + 2 && x[1] == in_channels_ && std::ranges::all_of(x.extents().subspan(2), halves))
    return;
  throw DataError(
      "a batch of shape {} does not fit the unet's [batch, {}, {}], each of them divisible by {}; set "
      "model.dims (2: images, 3: volumes), model.in_channels and the levels of model.channel_mult to suit "
      "the data, or pad it",
      to_string(x), in_channels_, positions_text(dims_), factor);
}

Var Unet::embedding(Tape& tape, const Tensor& t, const Tensor& classes, const Tensor& has_class) {
  kernels::Backend& backend = tape.backend();
  const std::int64_t half = model_channels_ / 2, samples = t.numel();
  if (!frequencies_ || frequencies_.device() != backend.device()) {
    const Tensor table = Tensor::empty({1, half});
    for (std::int64_t i = 0; i < half; ++i)
      table.data<float>()[i] = std::exp(static_cast<float>(-std::log(longest_period)) *
                                        static_cast<float>(i) / static_cast<float>(half));
    frequencies_ = kernels::on_device(table, backend);
  }
  const Var angles =
      tape.constant(backend.in_type(t, DType::float32).reshape({samples, 1})) * tape.constant(frequencies_);
  Var features = concat({cos(angles), sin(angles)}, 1);
  if (model_channels_ % 2 != 0) features = pad(features, {{}, {.after = 1}});
  const Var time = (*time_embed_2_)((*time_embed_0_)(tape.batch(features.value()), ops::Activation::silu));
  if (!label_emb_) return silu(time);
  const Var label = (*label_emb_)(tape, classes);
  return silu(time + (has_class ? where(has_class.reshape({samples, 1}), label, 0.0f) : label));
}

Var Unet::run(UnetBlock& block, const Var& x, const Var& skip, const Var& embedding) {
  const auto body = [&block, x, skip, embedding] {
    return block.run(skip.value() ? concat({x, skip}, 1) : x, embedding);
  };
  return recompute_ ? recomputed(x.tape(), body) : body();
}

Var Unet::predict(const Var& x, const Tensor& t, const Tensor& classes, const Tensor& has_class) {
  check_input(x.shape());
  const auto check_field = [&](const char* field, const Tensor& tensor, bool needs, const char* key,
                               const auto& value) {
    if (needs != static_cast<bool>(tensor))
      throw DataError("the unet {} field {}: model.{} is {}", needs ? "needs a" : "takes no", field, key,
                      value);
    if (needs && !(tensor.shape() == Shape{x.shape()[0]}))
      throw DataError("field {} has shape {}, but there are {} images: one number for each is needed", field,
                      to_string(tensor.shape()), x.shape()[0]);
  };
  const bool has_time = time_embed_0_.has_value(), has_classes = label_emb_.has_value();
  check_field("t", t, has_time, "time_embed", has_time);
  check_field("y", classes, has_classes, "num_classes", num_classes());
  check_field("has_class", has_class, has_classes && has_class, "num_classes", num_classes());

  const Var emb = has_time ? embedding(x.tape(), t, classes, has_class) : Var{};
  skips_.clear();
  Var h = x;
  for (const auto& block : input_blocks_) skips_.push_back(h = run(*block, h, {}, emb));
  h = run(*middle_block_, h, {}, emb);
  for (const auto& block : output_blocks_) {
    h = run(*block, h, skips_.back(), emb);
    skips_.pop_back();
  }
  const Var y = (*out_conv_)(out_norm_->adaptive(h, {.silu = true}));
  if (!class_logits_) return to_channel_block(y, 1);
  Shape shape{y.shape()[0]};
  for (const std::int64_t extent : y.shape().extents().subspan(2)) shape.append(extent);
  shape.append(out_channels_);
  return reshape(to_sequence(y), shape);
}

void Unet::check_target(const Shape& y, bool labels) const {
  if (labels != class_logits_)
    throw DataError("field y has {}; set model.class_logits = {} to learn {}", labels ? "labels" : "numbers",
                    labels, labels ? "the labels of positions" : "fields");
  if (!labels && out_channels_ > 1 && (y.rank() != 2 + dims_ || y[1] != out_channels_))
    throw DataError(
        "field y is {}, but the unet's output is [batch, {}{}]; set model.out_channels to the channels of y",
        to_string(y), out_channels_, dims_ == 3 ? ", depth, height, width" : ", height, width");
}

Var Unet::forward(Tape& tape, const Batch& batch) {
  const Tensor& x = batch["x"];
  check_input(x.shape());
  return predict(tape.batch(x), batch.has("t") ? batch["t"] : Tensor(), label_emb_ ? batch["y"] : Tensor(),
                 label_emb_ && batch.has("has_class") ? batch["has_class"] : Tensor());
}

void register_unet(Registry& registry) { registry.add<Unet>("unet"); }

}  // namespace lockstep::models
