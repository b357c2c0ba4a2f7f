// Functions of elements: gradients where reference cases do not reach, broadcasting, layouts, errors.
#include <boost/test/unit_test.hpp>

#include "autograd/gradient_check.h"
#include "autograd/recording_sink.h"
#include "lockstep/autograd/functions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(elementwise_functions)

using Vars = std::vector<Var>;
using OfTwo = Var (*)(const Var&, const Var&);

const std::pair<const char*, OfTwo> functions_of_two[] = {
    {"add", add}, {"sub", sub}, {"mul", mul}, {"div", div}, {"maximum", maximum}, {"minimum", minimum}};

std::vector<float> numbers(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.numel()};
}

/// Away from 0 by 1 at least.
Tensor divisors(const Shape& shape, std::uint64_t seed) {
  const Tensor tensor = spaced_tensor(shape, seed);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    float& x = tensor.data<float>()[i];
    x += x < 0 ? -1.0f : 1.0f;
  }
  return tensor;
}

BOOST_AUTO_TEST_CASE(gradients_of_a_value_paired_with_itself_equal_differences) {
  check_gradients([](Tape&, const Vars& x) { return x[0] * x[0] - x[0] / x[0] + x[0]; },
                  {divisors({2, 3}, 1)});
}

BOOST_AUTO_TEST_CASE(where_takes_a_number_for_either) {
  const Tensor condition = Tensor::zeros({2, 1}, DType::int64);
  condition.data<std::int64_t>()[0] = 1;
  for (const bool first : {false, true}) {
    check_gradients(
        [&](Tape&, const Vars& x) {
          return first ? where(condition, 7.0f, x[0]) : where(condition, x[0], 7.0f);
        },
        {normal_tensor({2, 3}, 1)});
    const auto backend = kernels::make_cpu_backend();
    Tape tape(*backend);
    tape.begin({.record = false});
    const Var x = tape.constant(normal_tensor({2, 3}, 1));
    const Tensor y = (first ? where(condition, 7.0f, x) : where(condition, x, 7.0f)).value();
    for (int i = 0; i < 6; ++i)
      BOOST_TEST(y.data<float>()[i] == ((i < 3) == first ? 7.0f : x.value().data<float>()[i]));
  }
}

BOOST_AUTO_TEST_CASE(gradients_beside_numbers_equal_differences) {
  check_gradients([](Tape&, const Vars& x) { return 2.0f / (3.0f - (x[0] * 0.5f + 1.0f)) - x[0] / 4.0f; },
                  {spaced_tensor({5}, 1)});
  check_gradients([](Tape&, const Vars& x) { return maximum(x[0], 0.05f) - minimum(-x[0], 0.05f); },
                  {spaced_tensor({5}, 1)});
}

BOOST_AUTO_TEST_CASE(gradients_of_functions_with_attributes_equal_differences) {
  check_gradients([](Tape&, const Vars& x) { return elu(x[0], 0.5f) + leaky_relu(x[0], 0.3f); },
                  {spaced_tensor({9}, 1)});
  check_gradients([](Tape&, const Vars& x) { return pow(x[0], 3) + pow(abs(x[0]), 0.5f); },
                  {divisors({9}, 1)});
}

struct Fixture {
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  Tape tape{*backend};
  Fixture() { tape.begin({}); }
  Var input(Shape shape, std::uint64_t seed = 1) { return tape.input(normal_tensor(shape, seed)); }
};

BOOST_FIXTURE_TEST_CASE(operators_are_the_functions, Fixture) {
  const Var a = input({2, 3}, 1), b = tape.input(divisors({3}, 2));
  const std::pair<Var, Var> same[] = {{a + b, add(a, b)},
                                      {a - b, sub(a, b)},
                                      {a * b, mul(a, b)},
                                      {a / b, div(a, b)},
                                      {-a, neg(a)},
                                      {a + 2.0f, add(2.0f, a)},
                                      {a - 2.0f, add(a, -2.0f)},
                                      {2.0f - a, neg(a - 2.0f)},
                                      {a * 2.0f, 2.0f * a},
                                      {a / 2.0f, 0.5f * a},
                                      {2.0f / b, 2.0f * reciprocal(b)}};
  for (const auto& [found, wanted] : same)
    BOOST_TEST(numbers(found.value()) == numbers(wanted.value()), boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(images_in_channel_blocks_stay_so_where_both_are_and_serve_where_one_is, Fixture) {
  const Tensor image = normal_tensor({2, 3, 2, 2}, 1), other = divisors({2, 3, 2, 2}, 2),
               channels = divisors({3, 1, 1}, 3);
  for (const auto& [name, function] : functions_of_two) {
    BOOST_TEST_CONTEXT(name) {
      const auto results = [&, call = function](int block, const Tensor& second) {
        tape.begin({});
        const Var x = tape.input(image), y = tape.input(second);
        const Var z =
            call(to_channel_block(x, block), y.shape().rank() == 4 ? to_channel_block(y, block) : y);
        const int kept = z.value().channel_block();
        const Var plain = to_channel_block(z, 1);
        tape.backward(plain, image);
        std::vector<float> all = numbers(plain.value());
        for (const Var& var : {x, y}) {
          const std::vector<float> gradient = numbers(tape.gradient(var));
          all.insert(all.end(), gradient.begin(), gradient.end());
        }
        return std::pair(kept, all);
      };
      const auto [kept, blocked] = results(8, other);
      BOOST_TEST(kept == 8);
      BOOST_TEST(blocked == results(1, other).second, boost::test_tools::per_element());
      BOOST_TEST(results(8, channels).second == results(1, channels).second,
                 boost::test_tools::per_element());
    }
  }
}

BOOST_FIXTURE_TEST_CASE(a_parameter_that_is_broadcast_gets_its_sum_in_float32, Fixture) {
  RecordingSink sink(*backend);
  Param param;
  param.name = "shift";
  param.value = normal_tensor({3}, 1);
  tape.begin({.sink = &sink, .compute = DType::bfloat16});
  const Var x = tape.batch(normal_tensor({4, 3}, 2)), p = tape.parameter(param);
  const Var y = (x + p) * p;
  BOOST_TEST((y.value().dtype() == DType::bfloat16));
  const Tensor dy = Tensor::empty({4, 3});
  backend->fill(dy, 1);
  tape.backward(y, dy);
  tape.finish_backward();
  BOOST_TEST((param.gradient.dtype() == DType::float32));
  const Tensor sums = Tensor::zeros({3});
  for (std::int64_t i = 0; i < 12; ++i) {
    const float given = normal_tensor({4, 3}, 2).data<float>()[i];
    sums.data<float>()[i % 3] += given + 2 * param.value.data<float>()[i % 3];
  }
  for (std::int64_t i = 0; i < 3; ++i)
    BOOST_TEST(std::abs(param.gradient.data<float>()[i] - sums.data<float>()[i]) < 0.1f);
}

BOOST_FIXTURE_TEST_CASE(a_batch_of_zero_goes_through_pairs, Fixture) {
  for (const auto& [name, function] : functions_of_two) {
    const Var x = tape.input(Tensor::empty({0, 3})), row = tape.input(divisors({3}, 1));
    const Var y = function(x, row);
    BOOST_TEST((y.shape() == Shape{0, 3}), name);
    tape.backward(y, Tensor::empty({0, 3}));
    BOOST_TEST(numbers(tape.gradient(row)) == std::vector<float>(3), boost::test_tools::per_element());
  }
}

BOOST_FIXTURE_TEST_CASE(wrong_arguments_are_usage_errors_that_name_the_function, Fixture) {
  const auto refused = [](const std::string& text) {
    return [=](const UsageError& error) { return std::string(error.what()).starts_with(text); };
  };
  const Var a = input({2, 3}), b = input({2});
  BOOST_CHECK_EXCEPTION(a * b, UsageError, refused("mul: the shapes [2, 3] and [2] do not broadcast"));
  BOOST_CHECK_EXCEPTION(maximum(a, b), UsageError, refused("maximum: the shapes"));
  BOOST_CHECK_EXCEPTION(where(Tensor::zeros({2}), b, b), UsageError,
                        refused("where: the condition is float32"));
  BOOST_CHECK_EXCEPTION(where(Tensor::zeros({4}, DType::int64), b, b), UsageError,
                        refused("where: the shapes"));
  BOOST_CHECK_EXCEPTION(clamp(a, 1, 0), UsageError, refused("clamp: low = 1"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
