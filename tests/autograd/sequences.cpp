// What transformers are made of: RMS norm and rotary positions. Values and gradients by PyTorch's cases are
// in golden_ops.cpp.
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "autograd/gradient_check.h"
#include "lockstep/autograd/functions.h"

namespace lockstep::test {
namespace {

using Vars = std::vector<Var>;

struct OnTheCpu {
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  Tape tape{*backend};
  OnTheCpu() { tape.begin({}); }
  Var input(Shape shape, std::uint64_t seed = 1) { return tape.input(normal_tensor(shape, seed)); }
};

/// Whether the error says all of it.
auto says(std::initializer_list<const char*> all) {
  return [all = std::vector<std::string>(all.begin(), all.end())](const UsageError& error) {
    return std::ranges::all_of(all, [&](const std::string& text) {
      return std::string(error.what()).find(text) != std::string::npos;
    });
  };
}

void check_equal(const Tensor& a, const Tensor& b, float tolerance) {
  BOOST_REQUIRE(a.shape() == b.shape());
  for (std::int64_t i = 0; i < a.numel(); ++i)
    BOOST_TEST(std::abs(a.data<float>()[i] - b.data<float>()[i]) <= tolerance, "element " << i);
}

BOOST_FIXTURE_TEST_SUITE(sequences, OnTheCpu)

BOOST_AUTO_TEST_CASE(gradients_of_rms_norm) {
  for (const int rows : {3, 130}) {  // more than a block of rows whose sums are one
    const auto norm = [](Tape&, const Vars& x) { return rms_norm(x[0], x[1], 1e-5f); };
    check_gradients(norm, {normal_tensor({rows, 5}, 1), normal_tensor({5}, 2)});
  }
}

BOOST_AUTO_TEST_CASE(rms_norm_adds_to_the_gradient_that_its_input_has) {
  check_gradients([](Tape&, const Vars& x) { return add(rms_norm(x[0], x[1], 1e-5f), x[0]); },
                  {normal_tensor({3, 11}, 1), normal_tensor({11}, 2)});
}

BOOST_AUTO_TEST_CASE(rms_norm_of_a_frozen_weight_passes_the_gradient_on) {
  const Tensor x = normal_tensor({3, 9}, 1), weight = normal_tensor({9}, 2), dy = normal_tensor({3, 9}, 3);
  const Var trained = tape.input(x), frozen = tape.input(x);
  tape.backward(rms_norm(trained, tape.input(weight), 1e-5f), dy);
  tape.backward(rms_norm(frozen, tape.constant(weight), 1e-5f), dy);
  check_equal(tape.gradient(trained), tape.gradient(frozen), 0);
}

BOOST_AUTO_TEST_CASE(an_empty_batch_goes_through_rms_norm_and_rotary) {
  const Var x = input({0, 2, 3, 4}), weight = input({4});
  const Var y = rotary(rms_norm(x, weight, 1e-5f), RotaryLayout::pairs);
  tape.backward(y, Tensor::empty(y.shape()));
  BOOST_TEST((tape.gradient(x).shape() == x.shape()));
  for (int i = 0; i < 4; ++i) BOOST_TEST(tape.gradient(weight).data<float>()[i] == 0.0f);
}

BOOST_AUTO_TEST_CASE(gradients_of_rotary) {
  for (const RotaryLayout layout : {RotaryLayout::halves, RotaryLayout::pairs})
    check_gradients([=](Tape&, const Vars& x) { return rotary(x[0], layout, 100.0f, 3); },
                    {normal_tensor({2, 2, 3, 6}, 1)});
}

BOOST_AUTO_TEST_CASE(rotary_from_a_later_position_is_the_end_of_a_longer_sequence) {
  const std::int64_t time = 7, first = 4;
  const Tensor x = normal_tensor({1, 1, time, 10}, 1);
  const Tensor tail = Tensor::view(x.data<float>() + first * 10, {1, 1, time - first, 10}, DType::float32);
  for (const RotaryLayout layout : {RotaryLayout::halves, RotaryLayout::pairs}) {
    const Tensor all = rotary(tape.constant(x), layout).value();
    const Tensor end = Tensor::view(all.data<float>() + first * 10, tail.shape(), DType::float32);
    check_equal(rotary(tape.constant(tail), layout, 10000, first).value(), end, 0);
  }
}

BOOST_AUTO_TEST_CASE(rotary_keeps_its_digits_at_far_positions) {
  const std::int64_t position = 1'000'003;
  const Tensor x = normal_tensor({1, 1, 1, 4}, 1);
  const Tensor y = rotary(tape.constant(x), RotaryLayout::pairs, 10000, position).value();
  for (int i = 0; i < 2; ++i) {
    const double angle = static_cast<double>(position) * std::pow(10000.0, -2.0 * i / 4.0);
    const double a = x.data<float>()[2 * i], b = x.data<float>()[2 * i + 1];
    BOOST_TEST(std::abs(y.data<float>()[2 * i] - (a * std::cos(angle) - b * std::sin(angle))) < 1e-6);
    BOOST_TEST(std::abs(y.data<float>()[2 * i + 1] - (b * std::cos(angle) + a * std::sin(angle))) < 1e-6);
  }
}

BOOST_AUTO_TEST_CASE(wrong_arguments_of_rms_norm_and_rotary_are_usage_errors) {
  BOOST_CHECK_EXCEPTION(rms_norm(input({2, 3}), input({4}), 1e-5f), UsageError,
                        says({"rms_norm", "[2, 3]", "[4]"}));
  BOOST_CHECK_EXCEPTION(rms_norm(input({}), input({1}), 1e-5f), UsageError, says({"rms_norm", "[]"}));
  BOOST_CHECK_EXCEPTION(rotary(input({2, 3, 4}), RotaryLayout::halves), UsageError,
                        says({"rotary", "[2, 3, 4]"}));
  BOOST_CHECK_EXCEPTION(rotary(input({1, 2, 3, 5}), RotaryLayout::pairs), UsageError,
                        says({"rotary", "[1, 2, 3, 5]", "even"}));
  BOOST_CHECK_EXCEPTION(rotary(input({1, 2, 3, 4}), RotaryLayout::pairs, 0), UsageError,
                        says({"rotary", "base"}));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
