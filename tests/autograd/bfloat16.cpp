// Passes that compute in bf16: which tensors are rounded, how often, and what stays float32.
#include <boost/test/unit_test.hpp>

#include "autograd/recording_sink.h"
#include "lockstep/autograd/functions.h"
#include "lockstep/tensor/dtype.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(bfloat16)

Tensor filled(Shape shape, float value) {
  const Tensor tensor = Tensor::empty(shape);
  std::fill_n(tensor.data<float>(), tensor.numel(), value);
  return tensor;
}

Param parameter(const std::string& name, Shape shape, float value) {
  Param param;
  param.name = name;
  param.value = filled(shape, value);
  return param;
}

float first_of(const Tensor& tensor) {
  return tensor.dtype() == DType::bfloat16 ? from_bfloat16_bits(tensor.data<BFloat16>()->bits)
                                           : *tensor.data<float>();
}

constexpr float third = 1.0f / 3, rounded_third = 0.333984375f;

struct Fixture {
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  RecordingSink sink{*backend};
  Tape tape{*backend};

  void begin(bool same_parameters = false, DType compute = DType::bfloat16) {
    tape.begin({.sink = &sink, .compute = compute, .same_parameters = same_parameters});
  }
};

BOOST_FIXTURE_TEST_CASE(a_batch_of_any_numbers_has_the_values_that_it_has_in_float32, Fixture) {
  for (const DType type : {DType::uint8, DType::int32, DType::int64, DType::float64, DType::float32}) {
    const Tensor numbers = Tensor::empty({2}, type);
    backend->fill(numbers, 201);
    begin(false, DType::float32);
    BOOST_TEST(first_of(tape.batch(numbers).value()) == 201, to_string(type));
    begin();
    const Tensor rounded = tape.batch(numbers).value();
    BOOST_TEST((rounded.dtype() == DType::bfloat16), to_string(type));
    BOOST_TEST(first_of(rounded) == 201, to_string(type));
  }
}

BOOST_FIXTURE_TEST_CASE(activations_are_bf16_and_gradients_of_parameters_float32, Fixture) {
  Param weight = parameter("weight", {4, 3}, third), bias = parameter("bias", {4}, third);
  Param scale = parameter("scale", {4}, third), shift = parameter("shift", {4}, third);
  begin();
  const Var x = tape.batch(filled({2, 3}, third));
  BOOST_TEST((x.value().dtype() == DType::bfloat16));
  BOOST_TEST(first_of(x.value()) == rounded_third);
  const Var h = linear(x, tape.weight(weight), tape.parameter(bias));
  const Var y = layer_norm(gelu_tanh(h) + h, tape.parameter(scale), tape.parameter(shift), 1e-5f);
  BOOST_TEST((y.value().dtype() == DType::bfloat16));
  const Loss loss = cross_entropy(y, Tensor::zeros({2}, DType::int64));
  BOOST_TEST((loss.sum.value().dtype() == DType::float32));
  backward(loss);
  tape.finish_backward();
  for (const Param* const param : {&weight, &bias, &scale, &shift}) {
    BOOST_TEST((param->gradient.dtype() == DType::float32), param->name);
    BOOST_TEST((param->value.dtype() == DType::float32), param->name);
  }
}

BOOST_FIXTURE_TEST_CASE(float32_activations_do_not_slip_into_products_in_bf16, Fixture) {
  Param weight = parameter("weight", {4, 3}, third), kernel = parameter("kernel", {4, 3, 1, 1}, third);
  begin();
  const auto names_data = mentions("Tape::batch(batch)");
  BOOST_CHECK_EXCEPTION(linear(tape.constant(filled({2, 3}, third)), tape.weight(weight)), UsageError,
                        names_data);
  BOOST_CHECK_EXCEPTION(conv2d(tape.constant(filled({2, 3, 5, 5}, third)), tape.weight(kernel)), UsageError,
                        names_data);
}

BOOST_FIXTURE_TEST_CASE(in_float32_a_weight_is_itself, Fixture) {
  Param weight = parameter("weight", {4, 3}, third);
  begin(false, DType::float32);
  BOOST_TEST(tape.weight(weight).value().shares_memory_with(weight.value));
  const Tensor x = filled({2, 3}, third);
  BOOST_TEST(tape.batch(x).value().shares_memory_with(x));
}

BOOST_FIXTURE_TEST_CASE(a_weight_is_rounded_once_for_all_passes_that_see_its_value, Fixture) {
  Param weight = parameter("weight", {4, 3}, third);
  begin();
  const Tensor first = tape.weight(weight).value();
  BOOST_TEST(first_of(first) == rounded_third);
  weight.value.data<float>()[0] = 2;  // not seen by a pass of the same step
  BOOST_TEST(tape.weight(weight).value().shares_memory_with(first));
  begin(true);
  BOOST_TEST(first_of(tape.weight(weight).value()) == rounded_third);
  begin();
  BOOST_TEST(first_of(tape.weight(weight).value()) == 2);
  BOOST_TEST(tape.weight(weight).value().shares_memory_with(first));  // nothing is allocated again
}

/// A language model's table is embedding and head at once.
BOOST_FIXTURE_TEST_CASE(a_weight_used_in_both_types_has_one_gradient, Fixture) {
  Param table = parameter("table", {5, 3}, third);
  begin();
  const Var h = embedding(Tensor::zeros({2}, DType::int64), tape.parameter(table));
  BOOST_TEST((h.value().dtype() == DType::bfloat16));
  backward(cross_entropy(linear(h, tape.weight(table)), Tensor::zeros({2}, DType::int64)));
  tape.finish_backward();
  BOOST_TEST(sink.events.back() == "ready table");
  BOOST_TEST((table.gradient.dtype() == DType::float32));
}

BOOST_FIXTURE_TEST_CASE(a_parameter_added_to_activations_gets_its_gradient_in_float32, Fixture) {
  Param offset = parameter("offset", {2, 3}, third);
  begin();
  const Var x = tape.batch(filled({2, 3}, 1));
  const Var once = tape.weight(offset), y = x + once + once;
  tape.backward(y, [&] {
    const Tensor dy = backend->empty({2, 3}, DType::bfloat16);
    backend->fill(dy, 1.5);
    return dy;
  }());
  tape.finish_backward();
  BOOST_TEST(first_of(offset.gradient) == 3);
}

BOOST_FIXTURE_TEST_CASE(weights_that_are_computed_get_gradients_of_their_own_type, Fixture) {
  begin();
  const Var weight = tape.input(filled({4, 3}, third)), x = tape.batch(filled({2, 3}, 1));
  Param half = parameter("half", {4, 3}, 1);
  const Var sum = tape.weight(half) + tape.weight(half);
  backward(cross_entropy(linear(x, weight) + linear(x, sum), Tensor::zeros({2}, DType::int64)));
  tape.finish_backward();
  BOOST_TEST((tape.gradient(weight).dtype() == DType::float32));
  BOOST_TEST((half.gradient.dtype() == DType::float32));
  BOOST_TEST(std::abs(first_of(half.gradient) - 2 * first_of(tape.gradient(weight))) < 1e-2);
}

BOOST_FIXTURE_TEST_CASE(a_target_of_floats_meets_its_activation, Fixture) {
  begin();
  const Var x = tape.batch(filled({2, 3}, 1));
  BOOST_TEST(mse(x, filled({2, 3}, 0)).read().sum == 6);
}

BOOST_FIXTURE_TEST_CASE(other_types_are_refused, Fixture) {
  BOOST_CHECK_THROW(tape.begin({.compute = DType::float64}), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
