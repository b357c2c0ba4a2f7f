// Folds along axes.
#include <limits>
#include <numeric>

#include "kernels/reference.h"
#include "ops/reduction.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(fold)

using kernels::make_cpu_backend;

/// In float64, element by element.
std::vector<double> sums_by_hand(const Tensor& x, const Shape& y) {
  std::vector<double> sums(static_cast<std::size_t>(y.numel()));
  const int missing = x.shape().rank() - y.rank();
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    std::int64_t rest = i, at = 0, step = 1;
    for (int d = x.shape().rank() - 1; d >= 0; --d) {
      if (d >= missing) {
        at += y[d - missing] == 1 ? 0 : rest % x.size(d) * step;
        step *= y[d - missing];
      }
      rest /= x.size(d);
    }
    sums[static_cast<std::size_t>(at)] += x.data<float>()[i];
  }
  return sums;
}

const std::vector<std::pair<Shape, Shape>>& cases() {
  static const std::vector<std::pair<Shape, Shape>> all{{{3, 5, 7}, {}},
                                                        {{3, 5, 7}, {7}},
                                                        {{3, 5, 7}, {3, 1, 1}},
                                                        {{3, 5, 7}, {5, 1}},
                                                        {{3, 5, 7}, {3, 1, 7}},
                                                        {{3, 5, 7}, {3, 5, 7}},
                                                        {{100003}, {1}},
                                                        {{2, 70001}, {2, 1}},
                                                        {{70001, 3}, {3}},
                                                        {{1000, 130}, {130}},
                                                        {{40, 2500}, {2500}},
                                                        {{1, 1}, {}},
                                                        {{4, 2, 3, 5, 2, 6}, {2, 1, 5, 1, 6}},
                                                        {{4, 2, 3, 5, 2, 6}, {4, 1, 3, 1, 2, 1}},
                                                        {{0, 4}, {4}},
                                                        {{4, 0}, {4, 1}},
                                                        {{0, 4}, {0, 1}}};
  return all;
}

BOOST_AUTO_TEST_CASE(sums_are_those_of_float64_with_the_same_bits_at_any_number_of_threads) {
  Draw draw(191);
  const auto one = make_cpu_backend(1), three = make_cpu_backend(3);
  for (const auto& [from, to] : cases()) {
    const Tensor x = draw.normal(from), y = Tensor::empty(to), again = Tensor::empty(to);
    one->run(ops::ReduceAxes<ops::Total>{x, y});
    three->run(ops::ReduceAxes<ops::Total>{x, again});
    BOOST_TEST(same_bits(y, again));
    check_close(y, sums_by_hand(x, to), to_string(from).c_str());
    one->run(ops::ReduceAxes<ops::Total>{x, y, true, -1});  // y = sum - sum
    for (const float rest : floats(y)) BOOST_TEST(rest == 0);
  }
}

BOOST_AUTO_TEST_CASE(a_million_terms_lose_no_more_than_a_few) {
  const auto backend = make_cpu_backend(2);
  for (const Shape& shape : {Shape{1000001}, Shape{1000001, 2}}) {
    const Tensor x = Tensor::empty(shape), y = Tensor::empty({shape.rank() == 2 ? 2 : 1});
    backend->fill(x, 0.1);
    backend->run(ops::ReduceAxes<ops::Total>{x, y});
    for (const float sum : floats(y)) BOOST_TEST(std::abs(sum - 100000.1f) <= 0.1f);
  }
}

BOOST_AUTO_TEST_CASE(bf16_is_summed_in_float32_and_rounded_once_to_either_type) {
  Draw draw(192);
  const auto backend = make_cpu_backend();
  const Tensor x = draw.normal({300, 9}), half = Tensor::empty({300, 9}, DType::bfloat16),
               wide = Tensor::empty({300, 9}), wanted = Tensor::empty({9}), y = Tensor::empty({9}),
               rounded = Tensor::empty({9}, DType::bfloat16),
               wanted_rounded = Tensor::empty({9}, DType::bfloat16);
  backend->copy(x, half);
  backend->copy(half, wide);
  backend->run(ops::ReduceAxes<ops::Total>{wide, wanted});
  backend->run(ops::ReduceAxes<ops::Total>{half, y});
  backend->run(ops::ReduceAxes<ops::Total>{half, rounded});
  backend->copy(wanted, wanted_rounded);
  BOOST_TEST(same_bits(y, wanted));
  BOOST_TEST(same_bits(rounded, wanted_rounded));
}

BOOST_AUTO_TEST_CASE(extremes_are_found_and_a_nan_stays) {
  Draw draw(193);
  const auto backend = make_cpu_backend();
  const Tensor x = draw.normal({70, 33}), most = Tensor::empty({33}), least = Tensor::empty({70, 1});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  floats(x)[5 * 33 + 7] = nan;
  backend->run(ops::ReduceAxes<ops::Largest>{x, most});
  backend->run(ops::ReduceAxes<ops::Smallest>{x, least});
  for (std::size_t c = 0; c < 33; ++c) {
    float wanted = floats(x)[c];
    for (std::size_t r = 1; r < 70; ++r) wanted = std::max(wanted, floats(x)[r * 33 + c]);
    BOOST_TEST((c == 7 ? std::isnan(floats(most)[c]) : floats(most)[c] == wanted));
  }
  for (std::size_t r = 0; r < 70; ++r) {
    const float wanted = *std::min_element(floats(x).begin() + static_cast<std::ptrdiff_t>(r * 33),
                                           floats(x).begin() + static_cast<std::ptrdiff_t>((r + 1) * 33));
    BOOST_TEST((r == 5 ? std::isnan(floats(least)[r]) : floats(least)[r] == wanted));
  }
}

BOOST_AUTO_TEST_CASE(of_nothing_the_sum_is_zero_and_an_extreme_is_refused) {
  const auto backend = make_cpu_backend();
  const Tensor none = Tensor::empty({3, 0}), y = Tensor::empty({3, 1});
  backend->fill(y, NAN);
  backend->run(ops::ReduceAxes<ops::Total>{none, y});
  for (const float sum : floats(y)) BOOST_TEST(sum == 0);
  BOOST_CHECK_THROW(backend->run(ops::ReduceAxes<ops::Largest>{none, y}), UsageError);
  backend->run(ops::ReduceAxes<ops::Largest>{Tensor::empty({0, 3}), Tensor::empty({0, 1})});
}

BOOST_AUTO_TEST_CASE(shapes_that_do_not_broadcast_are_refused) {
  const auto backend = make_cpu_backend();
  for (const Shape& y : {Shape{2}, Shape{4, 3}, Shape{1, 4, 3}, Shape{1, 1, 1}})
    BOOST_CHECK_THROW(backend->run(ops::ReduceAxes<ops::Total>{Tensor::zeros({5, 3}), Tensor::zeros(y)}),
                      UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
