// cosmoflow: the network of MLPerf HPC's CosmoFlow benchmark, which estimates parameters of a volume
// (cosmoflow/models/cosmoflow.py of github.com/mlcommons/hpc).
#include <bit>
#include <cmath>
#include <memory>
#include <vector>

#include "lockstep/autograd/recompute.h"
#include "lockstep/models/registry.h"
#include "lockstep/nn/layers.h"

namespace lockstep::models {
namespace {

/// `layers` times a 3x3x3 convolution, LeakyReLU and a max pool that halves the volume; layer k has width *
/// 2^k channels. Then linear layers of 128 and 64 with LeakyReLU and dropout, and one whose result is 1.2
/// tanh: targets are in [-1, 1]. First values are Keras's, as there. Features are flattened as [C, D, H, W],
/// there as [D, H, W, C].
class Cosmoflow final : public Model {
 public:
  static constexpr const char* task = "regression";
  struct Options {
    std::int64_t image_size = 0, in_channels = 0, outputs = 0, width = 32, layers = 5;
    double dropout = 0.5;
    bool recompute = false;

    static std::vector<Option<Options>> options();
  };
  Cosmoflow(const Options& options, std::uint64_t seed);

  std::vector<std::string> reads() const override { return {"x"}; }
  Shape sample_shape(std::int64_t) const override {
    return {in_channels_, image_size_, image_size_, image_size_};
  }
  void check_input(const Shape& x) const override;
  void check_target(const Shape& y, bool labels) const override;
  Var forward(Tape& tape, const Batch& batch) override;
  std::optional<Var> features(Tape& tape, const Batch& batch) override;

 private:
  using Convolutions = std::vector<std::unique_ptr<nn::Conv3d>>;
  Convolutions make_convolutions(const Options& options);

  std::int64_t image_size_, in_channels_, outputs_;
  bool recompute_;
  Convolutions convolutions_;
  nn::Linear fc_0_;
  nn::Dropout dropout_0_;
  nn::Linear fc_1_;
  nn::Dropout dropout_1_;
  nn::Linear fc_2_;
};

constexpr float leak = 0.3f;
constexpr float scale_of_outputs = 1.2f;
constexpr std::int64_t first_dense = 128, second_dense = 64;

std::vector<Option<Cosmoflow::Options>> Cosmoflow::Options::options() {
  using namespace option;
  using O = Options;
  return {
      number("image_size", &O::image_size, widths, "depth, height and width of a volume",
             {.unit = "positions", .required = true}),
      number("in_channels", &O::in_channels, widths, "channels of a volume", {.required = true}),
      number("outputs", &O::outputs, widths, "parameters to estimate, scaled to [-1, 1]",
             {.required = true, .peers = {"target_size"}}),
      number("width", &O::width, widths, "channels of the first convolution; each after it doubles them",
             {.peers = {"conv_size"}}),
      number("layers", &O::layers, Range::from(1, 16), "convolutions; each halves the volume",
             {.peers = {"n_conv_layers"}}),
      number("dropout", &O::dropout, Range::below(0, 1), "probability of zeroing an activation",
             {.keeps_weights = true}),
      recompute_option(&O::recompute),
  };
}

const Cosmoflow::Options& with_fitting_sizes(const Cosmoflow::Options& options) {
  const auto halvings =
      static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(checked(options).image_size))) - 1;
  if (options.layers > halvings)
    throw UsageError("model.layers = {}: each halves a volume, and model.image_size = {} allows {}",
                     options.layers, options.image_size, halvings);
  return options;
}

std::int64_t flattened(const Cosmoflow::Options& options) {
  const std::int64_t extent = options.image_size >> options.layers;
  return Shape{options.width << (options.layers - 1), extent, extent, extent}.numel();
}

/// Weights uniform as by Glorot and Bengio (2010), biases 0.
template <class L>
void initialize_as_keras(L& layer, std::uint64_t seed) {
  const Shape& shape = layer.weight.value.shape();
  const auto fans = static_cast<float>(shape.with(0, 1).numel() + shape.with(1, 1).numel());
  initialize(layer.weight, nn::Init::uniform(std::sqrt(6 / fans)), seed);
  initialize(*layer.bias, nn::Init::constant(0), seed);
}

Cosmoflow::Cosmoflow(const Options& options, std::uint64_t seed)
    : Model(seed),
      image_size_(with_fitting_sizes(options).image_size),
      in_channels_(options.in_channels),
      outputs_(options.outputs),
      recompute_(options.recompute),
      convolutions_(make_convolutions(options)),
      fc_0_(*this, "fc.0", flattened(options), first_dense),
      dropout_0_(*this, "dropout.0", static_cast<float>(options.dropout)),
      fc_1_(*this, "fc.1", first_dense, second_dense),
      dropout_1_(*this, "dropout.1", static_cast<float>(options.dropout)),
      fc_2_(*this, "fc.2", second_dense, options.outputs) {
  for (nn::Linear* const layer : {&fc_0_, &fc_1_, &fc_2_}) initialize_as_keras(*layer, seed);
  fc_2_.mark_as_head();
}

Cosmoflow::Convolutions Cosmoflow::make_convolutions(const Options& options) {
  Convolutions convolutions;
  std::int64_t in = options.in_channels;
  for (std::int64_t i = 0; i < options.layers; ++i) {
    const std::int64_t out = options.width << i;
    convolutions.push_back(std::make_unique<nn::Conv3d>(*this, fmt::format("conv.{}", i), in, out, 3,
                                                        nn::Conv3dOptions{.padding = 1}));
    initialize_as_keras(*convolutions.back(), seed());
    in = out;
  }
  return convolutions;
}

void Cosmoflow::check_input(const Shape& x) const {
  if (x.rank() == 5 && x.with(0, 1) == Shape{1, in_channels_, image_size_, image_size_, image_size_}) return;
  throw DataError(
      "a batch of shape {} does not fit cosmoflow's [batch, {}, {}, {}, {}]; set model.in_channels and "
      "model.image_size to those of the data",
      to_string(x), in_channels_, image_size_, image_size_, image_size_);
}

void Cosmoflow::check_target(const Shape& y, bool labels) const {
  if (!labels && (y == Shape{y[0], outputs_} || (outputs_ == 1 && y.rank() == 1))) return;
  throw DataError(
      "field y is {} {}, but cosmoflow estimates numbers [batch, {}], within -1.2 and 1.2; set model.outputs "
      "to "
      "those of the data",
      labels ? "labels" : "numbers", to_string(y), outputs_);
}

Var Cosmoflow::forward(Tape& tape, const Batch& batch) {
  return scale(tanh(fc_2_(*features(tape, batch))), scale_of_outputs);
}

std::optional<Var> Cosmoflow::features(Tape& tape, const Batch& batch) {
  const Tensor& x = batch["x"];
  check_input(x.shape());
  Var h = tape.batch(x);
  for (const auto& convolution : convolutions_) {
    // The activation keeps the order of values, so the pool may come first: an eighth of the work and memory.
    const auto body = [&convolution = *convolution, h] {
      return leaky_relu(max_pool3d(convolution(h), {.kernel = 2, .stride = 2}), leak);
    };
    h = recompute_ ? recomputed(tape, body) : body();
  }
  h = dropout_0_(leaky_relu(fc_0_(flatten(h, 1)), leak));
  return dropout_1_(leaky_relu(fc_1_(h), leak));
}

}  // namespace

void register_cosmoflow(Registry& registry) { registry.add<Cosmoflow>("cosmoflow"); }

}  // namespace lockstep::models
