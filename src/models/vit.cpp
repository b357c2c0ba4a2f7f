#include "lockstep/models/vit.h"

#include <cmath>

#include "lockstep/models/registry.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::models {
namespace {

constexpr float layer_norm_eps = 1e-6f;

const Vit::Options& with_fitting_sizes(const Vit::Options& options) {
  if (checked(options).image_size % options.patch != 0)
    throw UsageError("model.patch = {} does not divide model.image_size = {}", options.patch,
                     options.image_size);
  if (options.channels % options.heads != 0)
    throw UsageError("model.heads = {} does not divide model.channels = {}", options.heads, options.channels);
  return options;
}

std::int64_t tokens_of(const Vit::Options& options) {
  const std::int64_t patches = options.image_size / options.patch;
  return patches * patches + 1;
}

/// Weights uniform as by Glorot and Bengio (2010), biases N(0, 1e-12).
void initialize_mlp_layer(nn::Linear& layer, std::uint64_t seed) {
  const auto width = static_cast<float>(layer.weight.value.size(0) + layer.weight.value.size(1));
  initialize(layer.weight, nn::Init::uniform(std::sqrt(6 / width)), seed);
  initialize(*layer.bias, nn::Init::normal(1e-6f), seed);
}

/// tokens [batch, tokens, channels], of which the first is empty, plus their positions and the class token,
/// which are added to each other before, in float32.
Var add_tables(const Var& tokens, const Var& positions, const Var& class_token) {
  Tape& tape = tokens.tape();
  kernels::Backend& backend = tape.backend();
  const Shape table{tokens.shape()[1], tokens.shape()[2]}, one{1, tokens.shape()[2]};
  const Tensor sum = backend.empty(table), y = backend.empty(tokens.shape(), tokens.value().dtype());
  backend.copy(positions.value().reshape(table), sum);
  backend.run(ops::Accumulate{sum.rows(0, 1), class_token.value().reshape(one)});
  backend.run(ops::add_rows(tokens.value(), sum, y));
  return tape.record(y, {&tokens, &positions, &class_token},
                     [tokens = tokens.without_value(), positions = positions.without_value(),
                      class_token = class_token.without_value(), table](Tape& t, const Tensor& dy) {
                       kernels::Backend& b = t.backend();
                       const auto write = [&](const Tensor& from, const Tensor& gradient, bool accumulate) {
                         accumulate ? b.run(ops::Accumulate{gradient, from}) : b.copy(from, gradient);
                       };
                       const Tensor dsum = b.empty(t.of_each_shard(table));
                       t.run_by_shard(ops::SumRows{dy, dsum});
                       t.write_gradient(positions, [&](const Tensor& gradient, bool accumulate) {
                         write(dsum, gradient.reshape(dsum.shape()), accumulate);
                       });
                       t.write_gradient(class_token, [&](const Tensor& gradient, bool accumulate) {
                         const std::int64_t shards = t.pass().shards;
                         const Tensor rows = dsum.reshape({shards * table[0], table[1]}),
                                      each = gradient.reshape({shards, table[1]});
                         for (std::int64_t i = 0; i < shards; ++i)
                           write(rows.rows(i * table[0], i * table[0] + 1), each.rows(i, i + 1), accumulate);
                       });
                       t.add_gradient(tokens, dy);
                     });
}

/// The class token of a sequence.
Var first_token(const Var& x) { return x.value() ? narrow(x, 1, 0, 1) : x; }

}  // namespace

VitBlock::VitBlock(nn::Module& parent, std::string_view name, std::int64_t channels, std::int64_t heads,
                   std::int64_t mlp_channels, double dropout)
    : Layer(parent, name),
      ln_1_(*this, "ln_1", channels, layer_norm_eps),
      self_attention_(*this, "self_attention", channels, static_cast<int>(heads)),
      dropout_(*this, "dropout", static_cast<float>(dropout)),
      ln_2_(*this, "ln_2", channels, layer_norm_eps),
      mlp_0_(*this, "mlp.0", channels, mlp_channels),
      mlp_2_(*this, "mlp.2", static_cast<float>(dropout)),
      mlp_3_(*this, "mlp.3", mlp_channels, channels),
      mlp_4_(*this, "mlp.4", static_cast<float>(dropout)) {
  initialize_mlp_layer(mlp_0_, seed());
  initialize_mlp_layer(mlp_3_, seed());
}

Residual VitBlock::forward(const Residual& input) {
  return run_encoder_block({ln_1_, self_attention_, dropout_, ln_2_, mlp_0_, mlp_2_, mlp_3_, mlp_4_}, input);
}

std::vector<Option<Vit::Options>> Vit::Options::options() {
  using namespace option;
  using O = Options;
  return {
      number("image_size", &O::image_size, widths, "height and width of an image",
             {.required = true, .peers = {"img_size"}}),
      number("patch", &O::patch, widths, "height and width of a patch, which is a token",
             {.required = true, .peers = {"patch_size"}}),
      number("layers", &O::layers, depths, "blocks",
             {.required = true, .peers = {"n_layer", "n_layers", "num_layers", "depth"}}),
      number("heads", &O::heads, widths, "attention heads",
             {.required = true, .peers = {"n_head", "n_heads", "num_heads"}}),
      number("channels", &O::channels, widths, "width of a token",
             {.required = true, .peers = {"hidden_dim", "d_model", "hidden_size", "embed_dim", "dim"}}),
      number("mlp_channels", &O::mlp_channels, widths, "width between the two linear layers of a block",
             {.required = true, .peers = {"mlp_dim", "intermediate_size"}}),
      number("in_channels", &O::in_channels, widths, "channels of an image", {.required = true}),
      number("classes", &O::classes, widths, "classes",
             {.required = true, .peers = {"num_classes", "n_classes"}}),
      number("dropout", &O::dropout, Range::below(0, 1), "probability of zeroing an activation",
             {.keeps_weights = true}),
      recompute_option(&O::recompute),
  };
}

/// torchvision's files of 2022 name the linear layers of a block linear_1 and linear_2.
const ForeignWeights Vit::foreign{.program = "torchvision",
                                  .old_names = {{.old = ".mlp.linear_1.", .current = ".mlp.0."},
                                                {.old = ".mlp.linear_2.", .current = ".mlp.3."}}};

Vit::Encoder::Encoder(nn::Module& parent, const Options& options)
    : Module(parent, "encoder"),
      pos_embedding(*this, "pos_embedding", {1, tokens_of(options), options.channels},
                    nn::Init::normal(0.02f)),
      dropout(*this, "dropout", static_cast<float>(options.dropout)),
      layers(make_layers(options)),
      ln(*this, "ln", options.channels, layer_norm_eps) {
  pos_embedding.role = Param::Role::embedding;
}

std::vector<std::unique_ptr<VitBlock>> Vit::Encoder::make_layers(const Options& options) {
  std::vector<std::unique_ptr<VitBlock>> blocks;
  for (std::int64_t i = 0; i < options.layers; ++i)
    blocks.push_back(std::make_unique<VitBlock>(*this, fmt::format("layers.encoder_layer_{}", i),
                                                options.channels, options.heads, options.mlp_channels,
                                                options.dropout));
  return blocks;
}

Vit::Vit(const Options& options, std::uint64_t seed)
    : Model(seed),
      image_size_(with_fitting_sizes(options).image_size),
      in_channels_(options.in_channels),
      recompute_(options.recompute),
      class_token_(*this, "class_token", {1, 1, options.channels}, nn::Init::constant(0)),
      conv_proj_(*this, "conv_proj", options.in_channels, options.channels, static_cast<int>(options.patch),
                 {.stride = static_cast<int>(options.patch)}),
      encoder_(*this, options),
      head_(*this, "heads.head", options.channels, options.classes) {
  class_token_.role = Param::Role::embedding;
  const auto fan_in = static_cast<float>(options.in_channels * options.patch * options.patch);
  initialize(conv_proj_.weight, nn::Init::normal(1 / std::sqrt(fan_in)), seed);
  for (Param* const zero : {&*conv_proj_.bias, &head_.weight, &*head_.bias})
    initialize(*zero, nn::Init::constant(0), seed);
  head_.mark_as_head();
}

void Vit::check_input(const Shape& x) const {
  if (x.rank() == 4 && x.with(0, 1) == Shape{1, in_channels_, image_size_, image_size_}) return;
  throw DataError(
      "a batch of shape {} does not fit the vit's [batch, {}, {}, {}]; set model.in_channels and "
      "model.image_size to those of the data",
      to_string(x), in_channels_, image_size_, image_size_);
}

Var Vit::forward(Tape& tape, const Batch& batch) { return head_(*features(tape, batch)); }

std::optional<Var> Vit::features(Tape& tape, const Batch& batch) {
  const Tensor& x = batch["x"];
  check_input(x.shape());
  const Var patches = to_sequence(conv_proj_(tape.batch(x)));
  const std::int64_t channels = patches.shape()[2];
  const Var tokens = add_tables(pad(patches, {Pad{}, Pad{1, 0}}), tape.parameter(encoder_.pos_embedding),
                                tape.parameter(class_token_));
  Residual h{encoder_.dropout(tokens), {}};
  for (const auto& block : encoder_.layers) h = run_block(*block, h, recompute_);
  return reshape(encoder_.ln(first_token(h.x), first_token(h.branch)).norm, {x.size(0), channels});
}

void register_vit(Registry& registry) { registry.add<Vit>("vit"); }

}  // namespace lockstep::models
