// The U-Net: what it refuses, how it begins, what time, classes and dropout change, and its memory with
// model.recompute.
#include "lockstep/models/unet.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/gradient_sink.h"
#include "lockstep/models/registry.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(unet)

using models::Unet;
using Floats = std::vector<float>;

Unet::Options small() {
  return {.image_size = 8,
          .in_channels = 3,
          .model_channels = 32,
          .out_channels = 6,
          .num_res_blocks = 1,
          .attention_resolutions = {2},
          .channel_mult = {1, 2},
          .num_heads = 2};
}

/// Of volumes, without a time.
Unet::Options fields() {
  return {.dims = 3,
          .time_embed = false,
          .in_channels = 2,
          .model_channels = 8,
          .out_channels = 1,
          .num_res_blocks = 1,
          .channel_mult = {1, 2},
          .norm_groups = 4};
}

Tensor normals(Shape shape, std::uint64_t seed) {
  const Tensor tensor = Tensor::empty(shape);
  const Random random({.seed = seed});
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    tensor.data<float>()[i] = random.normal(static_cast<std::uint64_t>(i));
  return tensor;
}

template <class T>
Tensor numbers(std::initializer_list<T> values) {
  const Tensor tensor = Tensor::empty({static_cast<std::int64_t>(values.size())}, dtype_of<T>);
  std::ranges::copy(values, tensor.data<T>());
  return tensor;
}

Floats elements(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.numel()};
}

/// As after some training: nothing is zero that training starts at zero.
void leave_zero(Unet& unet) {
  for (Param* const param : unet.state().params) {
    float* const values = param->value.data<float>();
    if (std::ranges::all_of(std::span(values, static_cast<std::size_t>(param->value.numel())),
                            [](float value) { return value == 0; }))
      nn::initialize(*param, nn::Init::normal(0.1f), 5);
  }
}

struct Given {
  Tensor x = normals({2, 3, 8, 8}, 1), t = numbers<float>({3, 700}), classes = {}, has_class = {};
};

Floats output(Unet& unet, const Given& given, const Pass& pass = {.training = false, .record = false}) {
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  tape.begin(pass);
  return elements(unet.predict(tape.batch(given.x), given.t, given.classes, given.has_class).value());
}

void check_refused(const Unet::Options& options, const std::string& text) {
  BOOST_CHECK_EXCEPTION(Unet(options, 1), UsageError, [&](const UsageError& error) {
    BOOST_TEST_MESSAGE(error.what());
    return std::string(error.what()).starts_with(text);
  });
}

BOOST_AUTO_TEST_CASE(impossible_options_name_key_and_value) {
  check_refused({}, "model.in_channels is missing");
  Unet::Options options = small();
  options.image_size = 0;  // of fields any, but a diffusion makes images of one
  check_refused(options, "model.image_size is missing");
  options = fields();
  options.channel_mult.assign(40, 1);
  check_refused(options, "model.channel_mult names 40 levels");
  options = fields();
  options.num_classes = 3;
  check_refused(options, "model.num_classes acts by the time; set model.time_embed = true, or remove it");
  options = fields();
  options.use_scale_shift_norm = true;
  check_refused(options, "model.use_scale_shift_norm acts by the time");
  options = fields();
  options.dims = 1;
  check_refused(options, "model.dims: \"1\" is not a whole number in [2, 3]");
  options = fields();
  options.norm_groups = 5;
  check_refused(options, "model.channel_mult: 1 times model.model_channels = 8 gives 8 channels; group norm");
  options = small();
  options.channel_mult = {};
  check_refused(options, "model.channel_mult names no level");
  options.channel_mult = {1, 0};
  check_refused(options, "model.channel_mult: \"0\" is not a number in");
  options.channel_mult = {1, 1, 1, 1, 1};
  check_refused(options, "model.channel_mult names 5 levels, but model.image_size = 8 can be halved 3 times");
  options.channel_mult = {1, 1.3};
  check_refused(options, "model.channel_mult: 1.3 times model.model_channels = 32 gives 41 channels");
  options = small();
  options.model_channels = 48;
  check_refused(options, "model.channel_mult: 1 times model.model_channels = 48 gives 48 channels");
  options = small();
  options.attention_resolutions = {2, 4};
  check_refused(options,
                "model.attention_resolutions: no level has the downsampling factor 4; those of "
                "model.channel_mult have 1, 2");
  options.attention_resolutions = {3};
  check_refused(options, "model.attention_resolutions: no level has the downsampling factor 3");
  options.attention_resolutions = {8};  // as guided-diffusion's flag has it
  check_refused(options,
                "model.attention_resolutions: no level has the downsampling factor 8; those of "
                "model.channel_mult have 1, 2 (images of 8 x 8: 1)");
  options = small();
  options.num_heads = 3;
  check_refused(options, "model.num_heads = 3 does not divide the 64 channels");
  options = small();
  options.num_heads_upsample = 5;
  check_refused(options, "model.num_heads_upsample = 5 does not divide the 64 channels");
  options = small();
  options.num_head_channels = 48;
  check_refused(options, "model.num_head_channels = 48 does not divide the 64 channels");
  options.num_head_channels = 0;
  check_refused(options, "model.num_head_channels = 0 does not divide");
}

BOOST_AUTO_TEST_CASE(the_largest_possible_numbers_are_refused_without_overflow) {
  Unet::Options options = small();
  options.model_channels = 2147483647;
  options.channel_mult = {1e6};
  check_refused(options, "model.channel_mult");
}

BOOST_AUTO_TEST_CASE(a_product_of_width_and_multiplier_is_rounded_down) {
  Unet::Options options = small();
  options.model_channels = 33;  // an odd width of the time's features, too
  options.channel_mult = {0.97, 1.95};
  Unet unet(options, 1);
  const ModelState state = unet;
  const auto shape_of = [&](const std::string& name) {
    const auto param = std::ranges::find(state.params, name, &Param::name);
    BOOST_REQUIRE(param != state.params.end());
    return (*param)->value.shape();
  };
  BOOST_TEST((shape_of("input_blocks.0.0.weight") == Shape{32, 3, 3, 3}));
  BOOST_TEST((shape_of("middle_block.0.in_layers.2.weight") == Shape{64, 64, 3, 3}));
  BOOST_TEST((shape_of("time_embed.0.weight") == Shape{132, 33}));
  BOOST_TEST(output(unet, {}).size() == 2u * 6 * 8 * 8);
}

BOOST_AUTO_TEST_CASE(it_begins_as_zero_and_its_branches_do) {
  Unet unet(small(), 1);
  const Floats y = output(unet, {});
  BOOST_TEST(std::ranges::all_of(y, [](float value) { return value == 0; }));
  for (const Param* const param : unet.state().params) {
    const std::string& name = param->name;
    const bool zero = name.ends_with("out_layers.3.weight") || name.find("proj_out") != std::string::npos ||
                      name.starts_with("out.2.") || name.ends_with("out_layers.3.bias") ||
                      (name.ends_with(".bias") && (name.ends_with("layers.0.bias") ||
                                                   name.ends_with("norm.bias") || name == "out.0.bias"));
    const Floats values = elements(param->value);
    BOOST_TEST(std::ranges::all_of(values, [](float value) { return value == 0; }) == zero, name);
  }
}

BOOST_AUTO_TEST_CASE(time_changes_the_result_between_whole_steps_too) {
  Unet unet(small(), 1);
  leave_zero(unet);
  Given given;
  const Floats at_3 = output(unet, given);
  given.t = numbers<float>({3.5, 700});
  const Floats later = output(unet, given);
  const auto half = static_cast<std::ptrdiff_t>(at_3.size() / 2);
  BOOST_TEST(!std::equal(at_3.begin(), at_3.begin() + half, later.begin()));
  BOOST_TEST(std::equal(at_3.begin() + half, at_3.end(), later.begin() + half));
}

BOOST_AUTO_TEST_CASE(a_sample_without_a_class_gets_zeros_in_place_of_an_embedding) {
  Unet::Options options = small();
  Unet without(options, 1);
  options.num_classes = 4;
  Unet with(options, 1);
  leave_zero(without);
  leave_zero(with);
  Given given;
  const Floats unconditional = output(without, given);
  given.classes = numbers<std::int64_t>({2, 3});
  const Floats conditional = output(with, given);
  given.has_class = numbers<std::uint8_t>({0, 1});
  const Floats mixed = output(with, given);
  const auto half = static_cast<std::ptrdiff_t>(mixed.size() / 2);
  BOOST_TEST(std::equal(mixed.begin(), mixed.begin() + half, unconditional.begin()));
  BOOST_TEST(std::equal(mixed.begin() + half, mixed.end(), conditional.begin() + half));
  BOOST_TEST(!std::equal(conditional.begin(), conditional.begin() + half, unconditional.begin()));
}

BOOST_AUTO_TEST_CASE(dropout_changes_training_passes_only) {
  Unet::Options options = small();
  Unet plain(options, 1);
  options.dropout = 0.5;
  Unet dropping(options, 1);
  leave_zero(plain);
  leave_zero(dropping);
  BOOST_TEST((output(dropping, {}) == output(plain, {})));
  const Pass training{.record = false};
  BOOST_TEST((output(dropping, {}, training) != output(plain, {}, training)));
}

BOOST_AUTO_TEST_CASE(images_of_other_sizes_are_taken_if_every_level_halves_them) {
  Unet unet(small(), 1);
  BOOST_TEST(output(unet, {.x = normals({2, 3, 4, 14}, 1)}).size() == 2u * 6 * 4 * 14);
  BOOST_CHECK_NO_THROW(unet.check_input({5, 3, 2, 2}));
}

BOOST_AUTO_TEST_CASE(a_batch_of_nothing_makes_nothing) {
  Unet unet(small(), 1);
  BOOST_TEST(output(unet, {.x = Tensor::zeros({0, 3, 8, 8}), .t = Tensor::zeros({0})}).empty());
}

BOOST_AUTO_TEST_CASE(fields_that_do_not_fit_are_data_errors_naming_both_sides) {
  Unet::Options options = small();
  Unet unet(options, 1);
  options.num_classes = 4;
  Unet with_classes(options, 1);
  BOOST_TEST((unet.reads() == std::vector<std::string>{"x"}));
  BOOST_TEST((with_classes.reads() == std::vector<std::string>{"x", "y"}));
  const auto check = [](Unet& model, const Given& given, const std::string& text) {
    BOOST_CHECK_EXCEPTION(output(model, given), DataError, mentions(text));
  };
  check(unet, {.x = normals({2, 1, 8, 8}, 1)},
        "[2, 1, 8, 8] does not fit the unet's [batch, 3, height, width]");
  check(unet, {.x = normals({2, 3, 7, 8}, 1)}, "divisible by 2");
  check(unet, {.t = numbers<float>({1, 2, 3})}, "field t has shape [3], but there are 2 images");
  check(unet, {.classes = numbers<std::int64_t>({1, 2})}, "takes no field y: model.num_classes is 0");
  check(with_classes, {}, "needs a field y: model.num_classes is 4");
  check(with_classes, {.classes = numbers<std::int64_t>({1, 4})}, "4");
}

BOOST_AUTO_TEST_CASE(a_unet_of_fields_takes_volumes_of_any_size_and_no_time) {
  Unet unet(fields(), 1);
  for (const Param* const param : unet.state().params)
    BOOST_TEST(param->name.find("emb") == std::string::npos, param->name);
  BOOST_TEST(output(unet, {.x = normals({2, 2, 4, 6, 2}, 1), .t = {}}).size() == 2u * 4 * 6 * 2);
  BOOST_TEST((unet.sample_shape(4) == Shape{2, 4, 4, 4}));
  BOOST_CHECK_NO_THROW(unet.check_input(Shape{1, 2, 8, 8, 8}));
  const auto refused = [&](const Given& given, const std::string& text) {
    BOOST_CHECK_EXCEPTION(output(unet, given), DataError, mentions(text));
  };
  refused({.x = normals({2, 2, 4, 6, 2}, 1)}, "the unet takes no field t: model.time_embed is false");
  refused({.x = normals({2, 2, 4, 5, 2}, 1), .t = {}},
          "[2, 2, 4, 5, 2] does not fit the unet's [batch, 2, depth, height, width], each of them divisible "
          "by 2");
  refused({.x = normals({2, 2, 4, 4}, 1), .t = {}}, "model.dims");
  refused({.x = normals({2, 3, 4, 4, 4}, 1), .t = {}}, "model.in_channels");
  Unet with_time(small(), 1);
  BOOST_CHECK_EXCEPTION(output(with_time, {.t = {}}), DataError,
                        mentions("the unet needs a field t: model.time_embed is true"));
}

BOOST_AUTO_TEST_CASE(logits_of_positions_have_the_channels_last) {
  Unet::Options options = fields();
  options.out_channels = 3;
  Unet channels_first(options, 1);
  options.class_logits = true;
  Unet logits(options, 1);
  leave_zero(channels_first);
  leave_zero(logits);
  BOOST_TEST(channels_first.classes() == 0);
  BOOST_TEST(logits.classes() == 3);
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  tape.begin({.training = false, .record = false});
  const Var x = tape.batch(normals({2, 2, 2, 4, 6}, 1));
  const Var found = logits.predict(x), wanted = permute(channels_first.predict(x), {0, 2, 3, 4, 1});
  BOOST_TEST((found.shape() == Shape{2, 2, 4, 6, 3}));
  BOOST_TEST((elements(found.value()) == elements(wanted.value())));
}

BOOST_AUTO_TEST_CASE(parameters_say_what_they_are) {
  Unet::Options options = small();
  options.num_classes = 4;
  Unet unet(options, 1);
  const auto with_role = [&](Param::Role role) {
    std::vector<std::string> names;
    for (const Param* const param : unet.state().params)
      if (param->role == role) names.push_back(param->name);
    return names;
  };
  BOOST_TEST((with_role(Param::Role::head) == std::vector<std::string>{"out.2.weight", "out.2.bias"}));
  BOOST_TEST((with_role(Param::Role::embedding) == std::vector<std::string>{"label_emb.weight"}));
}

struct Gradients {
  std::vector<Floats> values;
  std::size_t bytes = 0;  ///< that the pool has taken from the system
};

/// Of all parameters, over two steps with dropout.
Gradients gradients_of(const Unet::Options& options, DType compute = DType::float32) {
  Unet unet(options, 1);
  leave_zero(unet);
  const auto backend = kernels::make_cpu_backend();
  LocalGradients gradients(unet, *backend);
  Tape tape(*backend);
  Gradients found;
  for (std::uint64_t step = 0; step < 2; ++step) {
    gradients.clear();
    tape.begin({.seed = 4, .step = step, .sink = &gradients, .compute = compute});
    const Tensor x = normals({6, 3, 16, 16}, 1), t = numbers<float>({3, 700, 1, 20, 999, 0});
    const Var y = unet.forward(tape, Batch(0, {{"x", x}, {"t", t}}));
    backward(mse(y, normals(y.shape(), 3)));
    tape.finish_backward();
    for (const Param* const param : gradients.params()) {
      BOOST_REQUIRE_MESSAGE(param->gradient, param->name);
      found.values.push_back(elements(param->gradient));
    }
  }
  found.bytes = backend->reserved_bytes();
  return found;
}

BOOST_AUTO_TEST_CASE(recomputed_gradients_have_the_same_bits_and_take_less_memory) {
  Unet::Options options = small();
  options.num_res_blocks = 3;
  options.dropout = 0.1;
  for (const bool scale_shift : {false, true}) {
    for (const DType compute : {DType::float32, DType::bfloat16}) {
      options.use_scale_shift_norm = options.resblock_updown = scale_shift;
      options.recompute = false;
      const Gradients kept = gradients_of(options, compute);
      options.recompute = true;
      const Gradients again = gradients_of(options, compute);
      BOOST_TEST((again.values == kept.values), to_string(compute));
      BOOST_TEST_MESSAGE(again.bytes << " bytes, not " << kept.bytes);
      // In bf16 the CPU's float32 copies are a part of both.
      BOOST_TEST(again.bytes < kept.bytes / 20 * (compute == DType::float32 ? 15 : 19), to_string(compute));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
