// Module: names, order, initial values, freezing, layers in errors.
#include "lockstep/nn/module.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <memory>
#include <optional>

#include "lockstep/autograd/functions.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/norm.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(module)

using Names = std::vector<std::string>;

struct Classifier : nn::Module {
  using nn::Module::Module;
  nn::Linear hidden{*this, "hidden", 6, 8};
  nn::Linear out{*this, "out", 8, 3};
  Var forward(const Var& x) { return out(relu(hidden(x))); }
};

struct Scaled : nn::Module {
  Scaled(nn::Module& parent, std::string_view name) : Module(parent, name) {}
  nn::BatchNorm2d norm{*this, "norm", 2};
  nn::Parameter scale{*this, "scale", {2}, nn::Init::constant(3)};  // own parameters come before children's
};

struct Nested : nn::Module {
  using nn::Module::Module;
  std::vector<std::unique_ptr<Scaled>> blocks = [this] {
    std::vector<std::unique_ptr<Scaled>> made;
    for (const char* const name : {"blocks.0", "blocks.1"})
      made.push_back(std::make_unique<Scaled>(*this, name));
    return made;
  }();
  nn::Linear head{*this, "head", 2, 2, false};
};

Names names_of(const ModelState& state) {
  Names names;
  for (const Param* const param : state.params) names.push_back(param->name);
  return names;
}

std::vector<float> values_of(const Param& param) {
  const float* const values = param.value.data<float>();
  return {values, values + param.value.numel()};
}

BOOST_AUTO_TEST_SUITE(module)

BOOST_AUTO_TEST_CASE(parameters_have_full_names_in_the_order_of_pytorch) {
  Classifier model;
  BOOST_TEST(names_of(model) == (Names{"hidden.weight", "hidden.bias", "out.weight", "out.bias"}),
             boost::test_tools::per_element());
  Nested nested;
  BOOST_TEST(names_of(nested) ==
                 (Names{"blocks.0.scale", "blocks.0.norm.weight", "blocks.0.norm.bias", "blocks.1.scale",
                        "blocks.1.norm.weight", "blocks.1.norm.bias", "head.weight"}),
             boost::test_tools::per_element());
  const ModelState state = nested;
  BOOST_REQUIRE(state.buffers.size() == 6u);
  BOOST_TEST(state.buffers[3]->name == "blocks.1.norm.running_mean");
  BOOST_TEST(state.buffers[5]->name == "blocks.1.norm.num_batches_tracked");
  BOOST_REQUIRE(state.statistics.size() == 2u);
  BOOST_TEST(state.statistics[0]->name() == "blocks.0.norm.moments");
}

BOOST_AUTO_TEST_CASE(a_model_computes_and_gets_gradients) {
  Classifier model;
  const auto backend = kernels::make_cpu_backend();
  LocalGradients gradients(model, *backend);
  Tape tape(*backend);
  tape.begin({.sink = &gradients});
  Tensor targets = Tensor::zeros({2}, DType::int64);
  const Loss loss = cross_entropy(model.forward(tape.constant(Tensor::zeros({2, 6}))), targets);
  backward(loss);
  tape.finish_backward();
  for (const Param* const param : gradients.params()) BOOST_TEST(!!param->gradient, param->name);
  BOOST_TEST(loss.read().count == 2);
}

BOOST_AUTO_TEST_CASE(a_model_may_go_before_the_tape_that_recorded_it) {
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  {
    Classifier model;
    LocalGradients gradients(model, *backend);
    tape.begin({.sink = &gradients});
    model.forward(tape.constant(Tensor::zeros({2, 6})));
    BOOST_TEST(tape.used_params().size() == 4u);
  }
  BOOST_TEST(tape.used_params().empty());
  tape.begin({});
}

BOOST_AUTO_TEST_CASE(a_name_is_used_once) {
  Classifier model;
  BOOST_CHECK_EXCEPTION(nn::Linear(model, "hidden", 1, 1), UsageError, mentions("'hidden'"));
  BOOST_CHECK_THROW(nn::Parameter(model, "hidden.weight", {1}, nn::Init::constant(0)), UsageError);
  BOOST_CHECK_THROW(nn::Dropout(model, "", 0.1f), UsageError);
  BOOST_TEST(names_of(model).size() == 4u);
}

BOOST_AUTO_TEST_CASE(a_module_that_goes_takes_its_names_with_it) {
  Classifier model;
  std::optional<nn::Linear> extra(std::in_place, model, "extra", 2, 2);
  BOOST_TEST(names_of(model).size() == 6u);
  extra.reset();
  BOOST_TEST(names_of(model).size() == 4u);
  extra.emplace(model, "extra", 2, 2);
  BOOST_TEST(names_of(model).back() == "extra.bias");
}

BOOST_AUTO_TEST_CASE(initial_values_depend_on_seed_and_name_only) {
  Classifier first(7), second(7), other(8);
  BOOST_TEST(values_of(first.out.weight) == values_of(second.out.weight), boost::test_tools::per_element());
  BOOST_TEST((values_of(first.out.weight) != values_of(other.out.weight)));
  nn::Module root(7);
  nn::Linear alone(root, "out", 8, 3);  // first of its model, and yet the same
  BOOST_TEST(values_of(first.out.weight) == values_of(alone.weight), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(initial_values_follow_pytorchs_distributions) {
  nn::Module root(1);
  const nn::Linear linear(root, "linear", 100, 50);
  for (const float value : values_of(linear.weight)) BOOST_TEST(std::abs(value) <= 0.1f);
  double squares = 0;
  for (const float value : values_of(linear.weight)) squares += value * value;
  BOOST_TEST(squares / 5000 == 0.01 / 3, boost::test_tools::tolerance(0.1));
  const nn::Conv2d convolution(root, "convolution", 4, 6, 3, {.groups = 2});
  BOOST_TEST((convolution.weight.value.shape() == Shape{6, 2, 3, 3}));
  for (const float value : values_of(*convolution.bias)) BOOST_TEST(std::abs(value) <= 1 / std::sqrt(18.0f));
  const nn::Conv1d rows(root, "rows", 4, 6, 5, {.groups = 2});
  BOOST_TEST((rows.weight.value.shape() == Shape{6, 2, 5}));
  for (const float value : values_of(rows.weight)) BOOST_TEST(std::abs(value) <= 1 / std::sqrt(10.0f));
  const nn::Embedding embedding(root, "embedding", 100, 50);
  squares = 0;
  for (const float value : values_of(embedding.weight)) squares += value * value;
  BOOST_TEST(squares / 5000 == 1, boost::test_tools::tolerance(0.1));
  const nn::LayerNorm norm(root, "norm", 3);
  BOOST_TEST(values_of(norm.weight) == std::vector<float>(3, 1), boost::test_tools::per_element());
  BOOST_TEST(values_of(*norm.bias) == std::vector<float>(3, 0), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(freezing_by_pattern_and_counting_what_is_left) {
  Classifier model;
  nn::freeze(model, Names{"hidden.*"});
  BOOST_TEST(!model.hidden.weight.trainable);
  BOOST_TEST(!model.hidden.bias->trainable);
  BOOST_TEST(model.out.weight.trainable);
  BOOST_TEST(nn::count_parameters(model) == 6 * 8 + 8 + 8 * 3 + 3);
  BOOST_TEST(nn::count_parameters(model, true) == 8 * 3 + 3);
}

BOOST_AUTO_TEST_CASE(freezing_by_a_pattern_that_matches_nothing_is_refused) {
  Classifier model;
  BOOST_CHECK_EXCEPTION(nn::freeze(model, Names{"hiden.weight"}), UsageError,
                        mentions("did you mean 'hidden.weight'?"));
}

struct Fold : nn::Layer<Fold> {
  using Layer::Layer;
  nn::Conv2d convolution{*this, "c1", 2, 2, 3};
  nn::BatchNorm2d norm{*this, "norm", 2};
  Var forward(const Var& x) { return reshape(convolution(x), {1, 2, 3}); }
};

struct Folds : nn::Layer<Folds> {
  using Layer::Layer;
  Fold fold{*this, "down2"};
  Var forward(const Var& x) { return fold(x); }
};

struct FoldModel : nn::Layer<FoldModel> {
  Folds folds{*this, "folds"};
  Var forward(const Var& x) { return folds(x); }
};

std::string error_of(const auto& compute) {
  try {
    compute();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

BOOST_AUTO_TEST_CASE(an_error_begins_with_the_path_of_the_innermost_layer_that_was_called) {
  FoldModel model;
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  tape.begin({.record = false});
  const auto zeros = [&](const Shape& shape) { return tape.constant(Tensor::zeros(shape)); };
  BOOST_TEST(error_of([&] { model(zeros({1, 3, 5, 5})); }).starts_with("folds.down2.c1: conv2d: "));
  BOOST_TEST(error_of([&] {
               model.folds.fold.norm.relu(zeros({1, 3, 5, 5}));
             }).starts_with("folds.down2.norm: batch_norm_relu: "));
  const std::string own = error_of([&] { model(zeros({1, 2, 5, 5})); });  // 18 elements, not 6
  BOOST_TEST(own.starts_with("folds.down2: "));
  BOOST_TEST(own.find("folds", 1) == std::string::npos, own);
  const std::string without = error_of([&] { relu(reshape(zeros({2}), {3})); });
  BOOST_TEST(error_of([&] { model.named([&] { return reshape(zeros({2}), {3}); }); }) == without);
}

BOOST_AUTO_TEST_CASE(a_transposed_convolution_has_pytorchs_parameters_and_extents) {
  nn::Module root(1);
  nn::ConvTranspose2d layer(root, "up", 4, 6, {2, 3},
                            {.stride = {2, 1}, .padding = {0, 1}, .output_padding = {1, 0}, .groups = 2});
  BOOST_TEST(names_of(root) == (Names{"up.weight", "up.bias"}), boost::test_tools::per_element());
  BOOST_TEST((layer.weight.value.shape() == Shape{4, 3, 2, 3}));
  BOOST_TEST((layer.bias->value.shape() == Shape{6}));
  for (const float value : values_of(layer.weight)) BOOST_TEST(std::abs(value) <= 1 / std::sqrt(18.0f));
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  tape.begin({.record = false});
  BOOST_TEST((layer(tape.constant(Tensor::zeros({2, 4, 5, 7}))).shape() == Shape{2, 6, 11, 7}));
}

BOOST_AUTO_TEST_CASE(a_convolution_may_be_rectangular) {
  nn::Module root;
  nn::Conv2d layer(root, "c", 2, 3, {1, 3}, {.stride = {1, 2}, .padding = {0, 2}, .dilation = {1, 2}});
  BOOST_TEST((layer.weight.value.shape() == Shape{3, 2, 1, 3}));
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  tape.begin({.record = false});
  BOOST_TEST((layer(tape.constant(Tensor::zeros({2, 2, 4, 9}))).shape() == Shape{2, 3, 4, 5}));
}

BOOST_AUTO_TEST_CASE(a_convolution_of_rows_is_one_of_images_of_height_1) {
  nn::Module root;
  nn::Conv1d rows(root, "r", 4, 6, 3, {.stride = 2, .padding = 1, .groups = 2});
  nn::Conv2d images(root, "i", 4, 6, {1, 3}, {.stride = {1, 2}, .padding = {0, 1}, .groups = 2});
  copy_elements(rows.weight.value.reshape({6, 2, 1, 3}), images.weight.value);
  copy_elements(rows.bias->value, images.bias->value);
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  tape.begin({.record = false});
  const Tensor x = Tensor::empty({2, 4, 7});
  for (std::int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = static_cast<float>(i % 11);
  const Var of_rows = rows(tape.constant(x)),
            of_images = to_channel_block(images(tape.constant(x.reshape({2, 4, 1, 7}))), 1);
  BOOST_TEST((of_rows.shape() == Shape{2, 6, 4}));
  const Tensor &found = of_rows.value(), &wanted = of_images.value();
  BOOST_REQUIRE(found.numel() == wanted.numel());
  BOOST_TEST(std::equal(found.data<float>(), found.data<float>() + found.numel(), wanted.data<float>()));
}

BOOST_AUTO_TEST_CASE(convolutions_of_volumes_have_pytorchs_parameters_and_extents) {
  nn::Module root;
  nn::Conv3d down(root, "c", 2, 6, {1, 2, 3}, {.stride = {1, 2, 1}, .padding = {0, 0, 1}, .groups = 2});
  nn::ConvTranspose3d up(root, "t", 6, 2, 2, {.stride = 2, .groups = 2});
  nn::BatchNorm3d norm(root, "b", 6);
  BOOST_TEST((down.weight.value.shape() == Shape{6, 1, 1, 2, 3}));
  BOOST_TEST((up.weight.value.shape() == Shape{6, 1, 2, 2, 2}));
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  tape.begin({.record = false});
  const Var y = norm(down(tape.constant(Tensor::zeros({2, 2, 3, 4, 5}))));
  BOOST_TEST((y.shape() == Shape{2, 6, 3, 2, 5}));
  BOOST_TEST((up(y).shape() == Shape{2, 2, 6, 4, 10}));
}

BOOST_AUTO_TEST_CASE(layers_refuse_impossible_settings) {
  nn::Module root;
  BOOST_CHECK_THROW(nn::Conv3d(root, "v", 4, 4, {3, 3}), UsageError);  // a direction is missing
  BOOST_CHECK_THROW(nn::Conv1d(root, "r", 4, 3, 3, {.groups = 2}), UsageError);
  BOOST_CHECK_THROW(nn::Conv2d(root, "c", 3, 4, 3, {.groups = 2}), UsageError);
  BOOST_CHECK_THROW(nn::ConvTranspose2d(root, "t", 4, 3, 3, {.groups = 2}), UsageError);
  BOOST_CHECK_THROW(nn::GroupNorm(root, "g", 2, 3), UsageError);
  BOOST_CHECK_THROW(nn::Dropout(root, "d", 1.0f), UsageError);
  BOOST_TEST(root.state().params.empty());  // nothing half-made is left
}

BOOST_AUTO_TEST_CASE(a_parameter_without_elements_is_refused_by_name) {
  struct Empty : nn::Module {
    using nn::Module::Module;
    nn::Linear out{*this, "out", 8, 0};
  };
  BOOST_CHECK_EXCEPTION(Empty(), UsageError, mentions("out.weight", "[0, 8]", "at least one element"));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
