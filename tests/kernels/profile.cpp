// What a profile says of operations, and that it changes none.
#include "kernels/profile.h"

#include <cmath>
#include <numeric>
#include <set>
#include <span>

#include "kernels/reference.h"
#include "lockstep/ops/attention.h"
#include "lockstep/ops/convolution.h"
#include "ops/batch_norm.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "support/fake_device.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(profile)

using namespace kernels;

struct Profiled {
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Profile profile;
  Profiler profiler{*backend, profile};

  OperationFigures only() const {
    const std::vector<OperationFigures> operations = profile.operations();
    BOOST_TEST_REQUIRE(operations.size() == 1u);
    BOOST_TEST(operations[0].ms > 0);
    return operations[0];
  }
};

BOOST_FIXTURE_TEST_CASE(a_dense_product_counts_two_operations_a_term_and_each_operand_once, Profiled) {
  const Tensor x = backend->empty({3, 4}), weight = backend->empty({5, 4}), bias = backend->empty({5}),
               y = backend->empty({3, 5});
  for (int call = 0; call < 2; ++call) backend->run(ops::linear(x, weight, bias, y));
  const OperationFigures linear = only();
  BOOST_TEST(linear.name == "matmul 3 x 4 -> 5, b transposed");
  BOOST_TEST(linear.calls == 2);
  BOOST_TEST(linear.flops == 2 * 2 * 3 * 4 * 5);
  BOOST_TEST(linear.bytes == 2 * 4 * (12 + 20 + 5 + 15));
}

BOOST_FIXTURE_TEST_CASE(operations_in_one_go_count_what_they_move_and_an_absent_operand_is_nothing,
                        Profiled) {
  const Tensor x = backend->empty({3, 4}), weight = backend->empty({5, 4}), bias = backend->empty({5}),
               y = backend->empty({3, 5});
  for (const Tensor& tensor : {x, weight, bias}) backend->fill(tensor, 1);
  profile.clear();
  backend->run(ops::linear(x, weight, bias, y, ops::Activation::gelu_tanh));
  OperationFigures fused = only();
  BOOST_TEST(fused.name == "matmul 3 x 4 -> 5, b transposed, with activation");
  BOOST_TEST(fused.flops == 2 * 3 * 4 * 5);
  BOOST_TEST(fused.bytes == 4 * (12 + 20 + 5 + 15));

  profile.clear();
  const Tensor row = backend->empty({4}), moments = backend->empty({3});
  backend->fill(row, 1);
  profile.clear();
  backend->run(ops::LayerNorm{x, x, row, row, 1e-5f, backend->empty({3, 4}), backend->empty({3, 4}), moments,
                              moments});
  fused = only();
  BOOST_TEST(fused.flops == 0);
  BOOST_TEST(fused.bytes == 4 * (4 * 12 + 2 * 4 + 2 * 3));

  profile.clear();
  backend->run(ops::BatchNorm{x, {row, row}, {}, true, backend->empty({3, 4})});
  BOOST_TEST(only().bytes == 4 * (2 * 12 + 2 * 4));
}

BOOST_FIXTURE_TEST_CASE(a_convolution_counts_its_terms_at_each_place_of_its_output, Profiled) {
  const Tensor x = backend->empty({2, 4, 6, 6}), weight = backend->empty({8, 2, 3, 3}),
               dy = backend->empty({2, 8, 3, 3});
  for (const Tensor& tensor : {x, weight, dy}) backend->fill(tensor, 1);
  profile.clear();
  backend->run(ops::ConvolutionBackwardInput{dy, weight, {.stride = 2, .padding = 1, .groups = 2}, x});
  const OperationFigures convolution = only();
  BOOST_TEST(convolution.name == "convolution_backward_input 2 x 4 x 6 x 6 -> 8, 3 x 3 / 2");
  BOOST_TEST(convolution.flops == 2 * (8 * 2 * 3 * 3) * (2 * 3 * 3));
}

BOOST_FIXTURE_TEST_CASE(causal_attention_counts_half_of_every_product_and_its_own_columns_only, Profiled) {
  const Tensor qkv = backend->empty({2, 5, 3 * 8}), y = backend->empty({2, 5, 8}),
               saved = backend->empty({2, 4, 5, 5});
  backend->fill(qkv, 0.5F);
  profile.clear();
  backend->run(ops::Attention{{qkv, 0, 8}, {qkv, 8, 8}, {qkv, 16, 8}, 4, true, y, saved});
  const OperationFigures attention = only();
  BOOST_TEST(attention.name == "attention 2 x 5 x 8, 4 heads");
  BOOST_TEST(attention.flops == 2 * 2 * 2 * 5 * 5 * 8 / 2);
  BOOST_TEST(attention.bytes == 4 * (2 * 5 * 3 * 8 + 2 * 5 * 8 + 2 * 4 * 5 * 5));
}

BOOST_FIXTURE_TEST_CASE(operations_come_longest_first_until_the_profile_is_cleared, Profiled) {
  profile.add("short", 1, 0, 8);
  profile.add("long", 5, 10, 8);
  profile.add("short", 1, 0, 8);
  const std::vector<OperationFigures> operations = profile.operations();
  BOOST_TEST_REQUIRE(operations.size() == 2u);
  BOOST_TEST(operations[0].name == "long");
  BOOST_TEST(operations[1].ms == 2);
  BOOST_TEST(operations[1].calls == 2);
  profile.clear();
  BOOST_TEST(profile.operations().empty());
}

BOOST_AUTO_TEST_CASE(a_read_brings_what_went_before_it_and_is_known_itself_at_the_next) {
  const auto device = make_fake_device();
  Profile profile;
  const Profiler profiler(*device, profile);
  const Tensor x = device->empty({4}), y = device->empty({4}), here = Tensor::zeros({4});
  const auto calls = [&](const std::string& name) {
    for (const OperationFigures& operation : profile.operations())
      if (operation.name == name) return operation.calls;
    return std::int64_t{0};
  };
  device->fill(x, 1);
  device->run(ops::add(x, x, y));
  BOOST_TEST(profile.operations().empty());
  device->copy(y, here);
  BOOST_TEST(here.data<float>()[3] == 2);
  BOOST_TEST((calls("fill") == 1 && calls("add") == 1));
  BOOST_TEST(calls("copy") == 0);
  device->run(ops::add(x, y, y));
  device->copy(y, here);
  BOOST_TEST(here.data<float>()[3] == 3);
  BOOST_TEST((calls("fill") == 1 && calls("add") == 2));
  BOOST_TEST(calls("copy") == 1);
}

BOOST_FIXTURE_TEST_CASE(ceilings_are_what_a_product_and_a_copy_reach, Profiled) {
  const auto unobserved = make_cpu_backend();
  const Ceilings ceilings = measure_ceilings(*unobserved);
  BOOST_TEST(ceilings.gflops > 0);
  BOOST_TEST(ceilings.gb_s > 0);
  BOOST_TEST(profile.operations().empty());
}

std::vector<Tensor> multiplied;

void look_at(Backend&, const ops::MatMul& product) { multiplied = {product.a, product.b}; }

BOOST_AUTO_TEST_CASE(the_ceiling_of_products_is_one_of_random_numbers) {
  const auto looking = make_cpu_backend();
  looking->enter<&look_at>();
  measure_ceilings(*looking);
  BOOST_TEST_REQUIRE(multiplied.size() == 2u);
  for (const Tensor& operand : multiplied) {
    const std::span<const float> numbers(operand.data<float>(), static_cast<std::size_t>(operand.numel()));
    const std::set<float> distinct(numbers.begin(), numbers.begin() + 10'000);
    BOOST_TEST(distinct.size() > 9'000u);
    BOOST_TEST(std::abs(std::accumulate(numbers.begin(), numbers.end(), 0.0)) <
               0.01 * static_cast<double>(operand.numel()));
  }
  multiplied.clear();
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
