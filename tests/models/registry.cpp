// Models: what they build and refuse, parameter names, input checks.
#include "lockstep/models/registry.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/gradient_sink.h"
#include "support/mentions.h"
#include "support/model_maker.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(registry)

using models::Gpt;
using models::Mlp;
using models::Resnet;
using models::Vit;
using Names = std::vector<std::string>;

Mlp::Options mlp() { return {.sizes = {12, 7, 6, 3}}; }
Resnet::Options resnet() { return {.blocks = {1, 2}, .width = 4, .in_channels = 3, .classes = 5}; }
Gpt::Options gpt() { return {.layers = 2, .heads = 2, .channels = 8, .context = 6, .vocab = 11}; }
Resnet::Options bottlenecks() {
  return {.blocks = {2, 1}, .width = 4, .in_channels = 3, .classes = 5, .block = "bottleneck"};
}
Vit::Options vit() {
  return {.image_size = 2,
          .patch = 1,
          .layers = 2,
          .heads = 2,
          .channels = 8,
          .mlp_channels = 12,
          .in_channels = 3,
          .classes = 5};
}
std::vector<ModelMaker> all_models() {
  return {ModelMaker::of<Mlp>("mlp", mlp()), ModelMaker::of<Resnet>("resnet", resnet()),
          ModelMaker::of<Resnet>("resnet of bottlenecks", bottlenecks()), ModelMaker::of<Gpt>("gpt", gpt()),
          ModelMaker::of<Vit>("vit", vit())};
}

Names names_of(const ModelState& state) {
  Names names;
  for (const Param* const param : state.params) names.push_back(param->name);
  return names;
}

/// M refuses the options in a text that contains all of `words`.
template <class M>
void check_refused(const typename M::Options& options, const Names& words) {
  BOOST_CHECK_EXCEPTION(M(options, 1), UsageError, mentions(words));
}

Tensor tokens(std::int64_t batch, std::int64_t time) {
  Tensor x = Tensor::zeros({batch, time}, DType::int64);
  for (std::int64_t i = 0; i < x.numel(); ++i) x.data<std::int64_t>()[i] = i % 11;
  return x;
}

struct Fixture {
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  Tape tape{*backend};
};

BOOST_FIXTURE_TEST_SUITE(registry, Fixture)

BOOST_AUTO_TEST_CASE(a_stem_for_large_images_quarters_them_and_keeps_the_names) {
  Resnet::Options options = resnet();
  Resnet small(options, 1);
  options.stem = "7x7";
  Resnet large(options, 1);
  BOOST_TEST(names_of(large) == names_of(small), boost::test_tools::per_element());
  const ModelState state = large;
  BOOST_TEST((state.params.front()->value.shape() == Shape{4, 3, 7, 7}));
  tape.begin({.training = false, .record = false});
  // 18 x 18: 9 x 9 behind the convolution, 5 x 5 behind the pool, 3 x 3 in the second stage.
  BOOST_TEST((large.forward(tape, Tensor::zeros({2, 3, 18, 18})).shape() == Shape{2, 5}));
  options.stem = "5x5";
  check_refused<Resnet>(options, {"model.stem: \"5x5\" is not one of: 3x3, 7x7"});
}

BOOST_AUTO_TEST_CASE(mlp_has_the_names_of_a_pytorch_sequential) {
  const auto model = std::make_unique<Mlp>(mlp(), 1);
  BOOST_TEST(names_of(*model) == (Names{"net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias",
                                        "net.4.weight", "net.4.bias"}),
             boost::test_tools::per_element());
  BOOST_TEST(model->classes() == 3);
  BOOST_TEST(model->context() == 0);
  tape.begin({.record = false});
  BOOST_TEST((model->forward(tape, Tensor::zeros({2, 3, 2, 2})).shape() == Shape{2, 3}));
}

BOOST_AUTO_TEST_CASE(resnet_has_the_names_of_torchvision) {
  const auto model = std::make_unique<Resnet>(resnet(), 1);
  BOOST_TEST(names_of(*model) == (Names{"conv1.weight",
                                        "bn1.weight",
                                        "bn1.bias",
                                        "layer1.0.conv1.weight",
                                        "layer1.0.bn1.weight",
                                        "layer1.0.bn1.bias",
                                        "layer1.0.conv2.weight",
                                        "layer1.0.bn2.weight",
                                        "layer1.0.bn2.bias",
                                        "layer2.0.conv1.weight",
                                        "layer2.0.bn1.weight",
                                        "layer2.0.bn1.bias",
                                        "layer2.0.conv2.weight",
                                        "layer2.0.bn2.weight",
                                        "layer2.0.bn2.bias",
                                        "layer2.0.downsample.0.weight",
                                        "layer2.0.downsample.1.weight",
                                        "layer2.0.downsample.1.bias",
                                        "layer2.1.conv1.weight",
                                        "layer2.1.bn1.weight",
                                        "layer2.1.bn1.bias",
                                        "layer2.1.conv2.weight",
                                        "layer2.1.bn2.weight",
                                        "layer2.1.bn2.bias",
                                        "fc.weight",
                                        "fc.bias"}),
             boost::test_tools::per_element());
  tape.begin({.record = false});
  BOOST_TEST((model->forward(tape, Tensor::zeros({2, 3, 9, 8})).shape() == Shape{2, 5}));
}

BOOST_AUTO_TEST_CASE(bottlenecks_have_the_names_and_shapes_of_torchvision) {
  const auto model = std::make_unique<Resnet>(bottlenecks(), 1);
  const ModelState state = *model;
  const Names names = names_of(state);
  BOOST_TEST(names.size() == 3u + 12 + 9 + 12 + 2);
  const std::string block = "layer1.0.";
  BOOST_TEST(
      (Names(names.begin() + 3, names.begin() + 15)) ==
          (Names{block + "conv1.weight", block + "bn1.weight", block + "bn1.bias", block + "conv2.weight",
                 block + "bn2.weight", block + "bn2.bias", block + "conv3.weight", block + "bn3.weight",
                 block + "bn3.bias", block + "downsample.0.weight", block + "downsample.1.weight",
                 block + "downsample.1.bias"}),
      boost::test_tools::per_element());
  BOOST_TEST((state.params.at(9)->value.shape() == Shape{16, 4, 1, 1}));   // layer1.0.conv3.weight
  BOOST_TEST((state.params.at(15)->value.shape() == Shape{4, 16, 1, 1}));  // layer1.1.conv1.weight
  BOOST_TEST((state.params.back()->value.shape() == Shape{5}));
  tape.begin({.record = false});
  BOOST_TEST((model->forward(tape, Tensor::zeros({2, 3, 9, 8})).shape() == Shape{2, 5}));
}

BOOST_AUTO_TEST_CASE(vit_has_the_names_of_torchvision) {
  const auto model = std::make_unique<Vit>(vit(), 1);
  const Names names = names_of(*model);
  BOOST_TEST(names.size() == 4u + 2 * 12 + 4);
  const std::string block = "encoder.layers.encoder_layer_0.";
  BOOST_TEST(
      (Names(names.begin(), names.begin() + 16)) ==
          (Names{"class_token", "conv_proj.weight", "conv_proj.bias", "encoder.pos_embedding",
                 block + "ln_1.weight", block + "ln_1.bias", block + "self_attention.in_proj_weight",
                 block + "self_attention.in_proj_bias", block + "self_attention.out_proj.weight",
                 block + "self_attention.out_proj.bias", block + "ln_2.weight", block + "ln_2.bias",
                 block + "mlp.0.weight", block + "mlp.0.bias", block + "mlp.3.weight", block + "mlp.3.bias"}),
      boost::test_tools::per_element());
  BOOST_TEST((Names(names.end() - 4, names.end())) ==
                 (Names{"encoder.ln.weight", "encoder.ln.bias", "heads.head.weight", "heads.head.bias"}),
             boost::test_tools::per_element());
  tape.begin({.record = false});
  BOOST_TEST((model->forward(tape, Tensor::zeros({2, 3, 2, 2})).shape() == Shape{2, 5}));
}

BOOST_AUTO_TEST_CASE(gpt_has_the_names_of_gpt2_in_its_order_and_no_head_of_its_own) {
  const auto model = std::make_unique<Gpt>(gpt(), 1);
  const Names names = names_of(*model);
  BOOST_TEST(names.size() == 2u + 2 * 12 + 2);
  const Names first(names.begin(), names.begin() + 14);
  const std::string h = "transformer.h.0.";
  BOOST_TEST(
      first == (Names{"transformer.wte.weight", "transformer.wpe.weight", h + "ln_1.weight", h + "ln_1.bias",
                      h + "attn.c_attn.weight", h + "attn.c_attn.bias", h + "attn.c_proj.weight",
                      h + "attn.c_proj.bias", h + "ln_2.weight", h + "ln_2.bias", h + "mlp.c_fc.weight",
                      h + "mlp.c_fc.bias", h + "mlp.c_proj.weight", h + "mlp.c_proj.bias"}),
      boost::test_tools::per_element());
  BOOST_TEST(names.back() == "transformer.ln_f.bias");
  tape.begin({.record = false});
  BOOST_TEST((model->forward(tape, tokens(2, 4)).shape() == Shape{2, 4, 11}));
  BOOST_TEST(model->context() == 6);
}

BOOST_AUTO_TEST_CASE(embeddings_and_output_heads_say_so) {
  const auto with_role = [](auto&& model, Param::Role role) {
    Names names;
    for (const Param* const param : model.state().params)
      if (param->role == role) names.push_back(param->name);
    return names;
  };
  using Role = Param::Role;
  BOOST_TEST((with_role(Mlp(mlp(), 1), Role::head) == Names{"net.4.weight", "net.4.bias"}));
  BOOST_TEST((with_role(Resnet(resnet(), 1), Role::head) == Names{"fc.weight", "fc.bias"}));
  BOOST_TEST((with_role(Gpt(gpt(), 1), Role::embedding) ==
              Names{"transformer.wte.weight", "transformer.wpe.weight"}));
  BOOST_TEST(with_role(Gpt(gpt(), 1), Role::head).empty());  // it is tied to an embedding
  BOOST_TEST((with_role(Vit(vit(), 1), Role::embedding) == Names{"class_token", "encoder.pos_embedding"}));
  BOOST_TEST((with_role(Vit(vit(), 1), Role::head) == Names{"heads.head.weight", "heads.head.bias"}));
}

/// The root of the mean square of its elements.
double deviation_of(const Param& param) {
  double squares = 0;
  for (std::int64_t i = 0; i < param.value.numel(); ++i) squares += std::pow(param.value.data<float>()[i], 2);
  return std::sqrt(squares / static_cast<double>(param.value.numel()));
}

BOOST_AUTO_TEST_CASE(bottlenecks_and_vit_begin_as_those_of_torchvision_do) {
  Resnet::Options wide = bottlenecks();
  wide.width = 32;
  Vit::Options transformer = vit();
  transformer.channels = 64;
  transformer.mlp_channels = 128;
  Resnet resnet(wide, 1);
  Vit model(transformer, 1);
  const auto check = [](const ModelState& state, std::string_view name, double wanted) {
    const auto param = std::ranges::find(state.params, name, &Param::name);
    BOOST_REQUIRE_MESSAGE(param != state.params.end(), name);
    const double deviation = deviation_of(**param);
    BOOST_TEST(std::abs(deviation - wanted) <= 0.15 * wanted, name << ": " << deviation);
  };
  check(resnet, "conv1.weight", std::sqrt(2.0 / (32 * 9)));
  check(resnet, "layer1.0.conv3.weight", std::sqrt(2.0 / 128));
  check(resnet, "fc.weight", std::sqrt(1.0 / 3 / 256));
  check(model, "class_token", 0);
  check(model, "conv_proj.weight", std::sqrt(1.0 / 3));
  check(model, "conv_proj.bias", 0);
  check(model, "encoder.pos_embedding", 0.02);
  check(model, "encoder.layers.encoder_layer_0.self_attention.in_proj_weight", std::sqrt(6.0 / 256 / 3));
  check(model, "encoder.layers.encoder_layer_0.mlp.0.weight", std::sqrt(6.0 / 192 / 3));
  check(model, "encoder.layers.encoder_layer_1.mlp.3.bias", 1e-6);
  check(model, "heads.head.weight", 0);
}

BOOST_AUTO_TEST_CASE(gpt_begins_as_gpt2_does) {
  Gpt::Options options = gpt();
  options.channels = 64;
  const auto model = std::make_unique<Gpt>(options, 1);
  for (const Param* const param : model->state().params) {
    const double deviation = deviation_of(*param);
    double wanted = 0.02;
    if (param->name.ends_with("c_proj.weight")) wanted = 0.02 / 2;  // sqrt(2 * 2 layers)
    if (param->name.find("ln_") != std::string::npos) wanted = 1;
    if (param->name.ends_with(".bias")) wanted = 0;
    BOOST_TEST(std::abs(deviation - wanted) <= 0.15 * wanted, param->name << ": " << deviation);
  }
}

BOOST_AUTO_TEST_CASE(every_parameter_of_every_model_gets_a_gradient) {
  for (const ModelMaker& maker : all_models()) {
    const auto model = maker.make(1);
    LocalGradients gradients(*model, *backend);
    tape.begin({.sink = &gradients});
    const bool images = model->context() == 0;
    const Tensor x = !images ? tokens(2, 6) : Tensor::zeros({2, 3, 2, 2});
    const Tensor y = Tensor::zeros(images ? Shape{2} : Shape{2, 6}, DType::int64);
    backward(cross_entropy(model->forward(tape, x), y));
    tape.finish_backward();
    for (const Param* const param : gradients.params()) BOOST_TEST(!!param->gradient, param->name);
  }
}

BOOST_AUTO_TEST_CASE(dropout_changes_training_passes_only) {
  const auto check = [&]<class M>(typename M::Options options, const Tensor& x) {
    const auto logits = [&](double p, bool training) {
      options.dropout = p;
      M model(options, 1);
      for (Param* const param : model.state().params)  // a vit's head begins at 0
        if (param->role == Param::Role::head) nn::initialize(*param, nn::Init::normal(1), 2);
      tape.begin({.training = training, .record = false});
      const Tensor y = model.forward(tape, x).value();
      return std::vector<float>(y.data<float>(), y.data<float>() + y.numel());
    };
    BOOST_TEST((logits(0.5, true) != logits(0, true)));
    BOOST_TEST((logits(0.5, false) == logits(0, false)));
  };
  check.operator()<Mlp>(mlp(), Tensor::zeros({2, 12}));
  check.operator()<Gpt>(gpt(), tokens(2, 6));
  check.operator()<Vit>(vit(), Tensor::zeros({2, 3, 2, 2}));
}

/// A batch of it passes the model's own check.
BOOST_AUTO_TEST_CASE(the_shape_of_a_sample_fits_the_model) {
  for (const ModelMaker& maker : all_models()) {
    const auto model = maker.make(1);
    const Shape sample = model->sample_shape(8);
    std::vector<std::int64_t> batch{2};
    batch.insert(batch.end(), sample.begin(), sample.end());
    BOOST_CHECK_NO_THROW(model->check_input(Shape(std::span<const std::int64_t>(batch))));
  }
  BOOST_TEST((Resnet(resnet(), 1).sample_shape(8) == Shape{3, 8, 8}));
}

BOOST_AUTO_TEST_CASE(inputs_that_do_not_fit_are_data_errors_naming_both_shapes) {
  tape.begin({.record = false});
  const auto check = [&](models::Model&& model, const Tensor& x, const Names& words) {
    BOOST_CHECK_EXCEPTION(model.forward(tape, x), DataError, mentions(words));
  };
  check(Mlp(mlp(), 1), Tensor::zeros({2, 3, 2, 3}), {"[2, 3, 2, 3]", "12", "model.sizes"});
  check(Resnet(resnet(), 1), Tensor::zeros({2, 1, 8, 8}),
        {"[2, 1, 8, 8]", "[batch, 3, height, width]", "model.in_channels"});
  check(Resnet(resnet(), 1), Tensor::zeros({2, 3}), {"[2, 3]"});
  check(Resnet(resnet(), 1), Tensor::zeros({2, 3, 4, 4, 4}), {"[2, 3, 4, 4, 4]", "model.dims"});
  Resnet::Options volumes = resnet();
  volumes.dims = 3;
  check(Resnet(volumes, 1), Tensor::zeros({2, 3, 4, 4}),
        {"[2, 3, 4, 4]", "[batch, 3, depth, height, width]", "model.dims"});
  check(Gpt(gpt(), 1), tokens(2, 7), {"[2, 7]", "6", "model.context"});
  check(Vit(vit(), 1), Tensor::zeros({2, 3, 2, 4}), {"[2, 3, 2, 4]", "[batch, 3, 2, 2]", "model.image_size"});
  check(Vit(vit(), 1), Tensor::zeros({2, 12}), {"[2, 12]"});
}

BOOST_AUTO_TEST_CASE(impossible_options_name_key_and_value) {
  BOOST_CHECK_THROW(models::make_model({}, 1), UsageError);
  check_refused<Mlp>({}, {"model.sizes is missing"});
  check_refused<Mlp>({.sizes = {4}}, {"model.sizes = 4"});
  check_refused<Mlp>({.sizes = {4, 0, 2}}, {"model.sizes: \"0\" is not a whole number in [1, 2147483647]"});
  Resnet::Options images = resnet();
  images.classes = 0;
  check_refused<Resnet>(images, {"model.classes is missing"});
  images = resnet();
  images.in_channels = -1;
  check_refused<Resnet>(images, {"model.in_channels: \"-1\""});
  images = resnet();
  images.batch_norm = "synced";
  check_refused<Resnet>(images, {"model.batch_norm: \"synced\" is not one of: plain, sync"});
  images = resnet();
  images.dims = 4;
  check_refused<Resnet>(images, {"model.dims: \"4\" is not a whole number in [2, 3]"});
  images = resnet();
  images.blocks.assign(17, 1);
  check_refused<Resnet>(images, {"model.blocks names 17 stages"});
  images = resnet();
  images.block = "wide";
  check_refused<Resnet>(images, {"model.block: \"wide\" is not one of: basic, bottleneck"});
  Vit::Options patches = vit();
  patches.patch = 3;
  check_refused<Vit>(patches, {"model.patch = 3 does not divide model.image_size = 2"});
  patches = vit();
  patches.heads = 3;
  check_refused<Vit>(patches, {"model.heads = 3 does not divide model.channels = 8"});
  patches = vit();
  patches.image_size = patches.patch = patches.in_channels = 2147483647;
  patches.heads = 1;
  check_refused<Vit>(patches, {"has more elements than any machine holds"});
  Gpt::Options text = gpt();
  text.heads = 3;
  check_refused<Gpt>(text, {"model.heads = 3", "model.channels = 8"});
  text = gpt();
  text.dropout = 1;
  check_refused<Gpt>(text, {"model.dropout: \"1\" is not a number in [0, 1)"});
}

/// cosmoflow of [3, extent, extent, extent].
std::unique_ptr<models::Model> cosmoflow(const char* layers, const char* extent = "8") {
  return ModelMaker::of_keys("cosmoflow", {{"image_size", extent},
                                           {"in_channels", "3"},
                                           {"outputs", "2"},
                                           {"width", "4"},
                                           {"layers", layers}})
      .make(1);
}

BOOST_AUTO_TEST_CASE(cosmoflow_refuses_volumes_that_do_not_fit) {
  BOOST_CHECK_EXCEPTION(
      cosmoflow("4"), UsageError,
      mentions("model.layers = 4: each halves a volume, and model.image_size = 8 allows 3"));
  BOOST_CHECK_EXCEPTION(cosmoflow("1", "2147483647"), UsageError,
                        mentions("more elements than any machine holds"));
  const auto model = cosmoflow("3");
  tape.begin({.record = false});
  for (const Shape& shape : {Shape{2, 3, 8, 8}, Shape{2, 1, 8, 8, 8}, Shape{2, 3, 8, 8, 9}})
    BOOST_CHECK_EXCEPTION(model->forward(tape, Tensor::zeros(shape)), DataError,
                          mentions(Names{to_string(shape), "[batch, 3, 8, 8, 8]", "model.image_size"}));
  BOOST_TEST((model->forward(tape, Tensor::zeros({2, 3, 8, 8, 8})).shape() == Shape{2, 2}));
}

BOOST_AUTO_TEST_CASE(outputs_of_cosmoflow_cover_targets_in_minus_one_to_one) {
  const auto model = cosmoflow("3");
  const ModelState state = model->state();
  const auto bias = std::ranges::find(state.params, std::string("fc.2.bias"), &Param::name);
  BOOST_REQUIRE(bias != state.params.end());
  (*bias)->value.data<float>()[0] = 100;
  (*bias)->value.data<float>()[1] = -100;
  tape.begin({.training = false, .record = false});
  const Tensor y = model->forward(tape, Tensor::zeros({1, 3, 8, 8, 8})).value();
  BOOST_TEST(y.data<float>()[0] == 1.2f);
  BOOST_TEST(y.data<float>()[1] == -1.2f);
}

BOOST_AUTO_TEST_CASE(a_name_that_is_near_one_of_a_model_is_told) {
  BOOST_CHECK_EXCEPTION(models::built_in_models().configure("resnett"), UsageError,
                        [](const UsageError& error) {
                          return std::string(error.what()) ==
                                 "\"resnett\" is not one of: mlp, resnet, gpt, llama, unet, vit, encoder, "
                                 "rnn, cosmoflow; did you mean resnet?";
                        });
}

BOOST_AUTO_TEST_CASE(the_summary_counts_parameters_and_names_frozen_ones) {
  const auto model = std::make_unique<Mlp>(Mlp::Options{.sizes = {4, 3}}, 1);
  BOOST_TEST(models::summary(*model) == "15 parameters in 2 tensors");
  nn::freeze(*model, Names{"*.bias"});
  BOOST_TEST(models::summary(*model) == "15 parameters in 2 tensors, 3 of them frozen");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
