// Reductions along axes: gradients against differences where no reference case reaches, and errors.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>

#include "autograd/gradient_check.h"
#include "lockstep/autograd/functions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(reductions)

using Vars = std::vector<Var>;
using Reduction = Var (*)(const Var&, const Axes&, bool);
constexpr Reduction all[] = {sum, mean, variance, amax, amin, logsumexp};

BOOST_AUTO_TEST_CASE(gradients_over_all_axes_and_over_axes_apart) {
  for (const Reduction reduce : all) {
    for (const Axes& axes : {Axes{}, Axes{0, -2}, Axes{3, 1}, Axes{2}}) {
      for (const bool keep : {false, true})
        check_gradients([&](Tape&, const Vars& x) { return reduce(x[0], axes, keep); },
                        {spaced_tensor({2, 3, 2, 3}, 1)});
    }
  }
}

BOOST_AUTO_TEST_CASE(gradients_of_channel_blocks) {
  check_gradients(
      [](Tape&, const Vars& x) {
        return sum(to_channel_block(x[0], 8), {0, 2, 3});
      },
      {normal_tensor({2, 3, 2, 2}, 1)});
  check_gradients([](Tape&, const Vars& x) { return softmax(to_channel_block(x[0], 8), 1); },
                  {normal_tensor({2, 3, 2, 2}, 1)});
}

BOOST_AUTO_TEST_CASE(gradients_of_softmaxes_of_long_rows) {
  check_gradients([](Tape&, const Vars& x) { return softmax(x[0]); }, {normal_tensor({2, 300}, 1)});
  check_gradients([](Tape&, const Vars& x) { return log_softmax(x[0], 0); }, {normal_tensor({300, 2}, 1)});
}

/// Runs body(tape, x) in a pass, and returns the gradient of x for one of ones.
template <class Body>
Tensor gradient_of(const Tensor& value, const Body& body) {
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  tape.begin({});
  const Var x = tape.input(value), y = body(x);
  const Tensor ones = Tensor::empty(y.shape());
  backend->fill(ones, 1);
  tape.backward(y, ones);
  tape.finish_backward();
  return tape.gradient(x);
}

BOOST_AUTO_TEST_CASE(equal_extremes_share_the_gradient) {
  const Tensor x = Tensor::zeros({2, 4});
  x.data<float>()[1] = x.data<float>()[3] = 5;
  const Tensor dx = gradient_of(x, [](const Var& v) { return amax(v, 1); });
  const float wanted[] = {0, 0.5f, 0, 0.5f, 0.25f, 0.25f, 0.25f, 0.25f};
  for (int i = 0; i < 8; ++i) BOOST_TEST(dx.data<float>()[i] == wanted[i]);
}

BOOST_AUTO_TEST_CASE(exponentials_neither_overflow_nor_vanish) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float most : {1000.0f, -1000.0f, -infinity}) {
    const Tensor x = Tensor::empty({2});
    x.data<float>()[0] = x.data<float>()[1] = most;
    const auto backend = kernels::make_cpu_backend();
    Tape tape(*backend);
    tape.begin({});
    const float found = *logsumexp(tape.input(x)).value().data<float>();
    BOOST_TEST((found == most || std::abs(found - (most + std::log(2.0f))) <= 1e-4f));
    if (std::isinf(most)) continue;
    BOOST_TEST(softmax(tape.input(x)).value().data<float>()[1] == 0.5f);
    BOOST_TEST(std::abs(log_softmax(tape.input(x)).value().data<float>()[1] + std::log(2.0f)) <= 1e-6f);
  }
}

BOOST_AUTO_TEST_CASE(a_batch_of_nothing) {
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  tape.begin({});
  const Var none = tape.input(Tensor::empty({0, 3}));
  for (const Reduction reduce : all) BOOST_TEST((reduce(none, 1, false).shape() == Shape{0}));
  BOOST_TEST(*sum(none).value().data<float>() == 0);
  BOOST_TEST(sum(none, 0).value().data<float>()[2] == 0);
  BOOST_TEST((softmax(none).shape() == Shape{0, 3}));
  BOOST_TEST((cumsum(none, 1).shape() == Shape{0, 3}));
  BOOST_TEST(gradient_of(Tensor::empty({0, 3}), [](const Var& x) { return log_softmax(x, 1); }).numel() == 0);
  for (const std::int64_t width : {1024, 1025, 5000}) {
    const Var wide = tape.input(Tensor::empty({0, width}));
    BOOST_TEST(sum(wide, 0).value().data<float>()[width - 1] == 0);
    BOOST_TEST((softmax(wide, 1).shape() == Shape{0, width}));
    const Tensor bias = gradient_of(Tensor::zeros({width}), [&](const Var& b) {
      return sum(b.tape().constant(Tensor::empty({0, width})) + b);
    });
    BOOST_TEST(bias.data<float>()[width - 1] == 0);
  }
}

BOOST_AUTO_TEST_CASE(a_nan_reaches_the_gradients_of_extremes) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Tensor x = Tensor::zeros({3});
  x.data<float>()[1] = nan;
  for (const auto function :
       {+[](const Var& v) { return amax(v, 0); }, +[](const Var& v) { return sum(maximum(v, v)); }})
    BOOST_TEST(
        std::isnan(gradient_of(x, [&](const Var& v) { return function(v) * function(v); }).data<float>()[1]));
}

BOOST_AUTO_TEST_CASE(a_row_that_is_masked_whole_has_no_gradient_through_logsumexp) {
  Tensor x = Tensor::zeros({4});
  std::fill_n(x.data<float>(), 4, -std::numeric_limits<float>::infinity());
  const Tensor dx = gradient_of(x, [](const Var& v) { return logsumexp(v, 0); });
  for (int i = 0; i < 4; ++i) BOOST_TEST(dx.data<float>()[i] == 0);
}

BOOST_AUTO_TEST_CASE(wrong_axes_are_refused_by_name) {
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  tape.begin({});
  const Var x = tape.input(Tensor::zeros({2, 3})), none = tape.input(Tensor::empty({0, 3}));
  const auto refused = [](const auto& body, const std::string& text) {
    BOOST_CHECK_EXCEPTION(body(), UsageError,
                          [&](const UsageError& error) { return std::string(error.what()) == text; });
  };
  refused([&] { sum(x, 2); }, "sum: shape [2, 3] has no axis 2");
  refused([&] { mean(x, {0, -3}); }, "mean: shape [2, 3] has no axis -3");
  refused([&] { variance(x, {1, -1}); }, "variance: axis -1 is named twice");
  refused([&] { amax(none, 0); }, "amax: shape [0, 3] has no elements along these axes");
  refused([&] { logsumexp(none); }, "logsumexp: shape [0, 3] has no elements along these axes");
  refused([&] { softmax(x, 5); }, "softmax: shape [2, 3] has no axis 5");
  refused([&] { cumsum(x, -3); }, "cumsum: shape [2, 3] has no axis -3");
  BOOST_CHECK_THROW((Axes{0, 1, 2, 3, 4, 5, 6}), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
