// The branch-free float functions against double-precision libm.
#include "lockstep/ops/math.h"

#include <boost/test/unit_test.hpp>
#include <limits>

#include "lockstep/base/processor.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(vector_math)

using namespace ops;

constexpr float infinity = std::numeric_limits<float>::infinity();

/// Distance in units of the last place of the reference, a normal float.
double ulps(float result, double reference) {
  int exponent = 0;
  std::frexp(reference, &exponent);
  return std::abs(result - reference) / std::ldexp(1.0, std::max(exponent, -125) - 24);
}

template <class Function, class Reference>
double worst(float from, float to, float step, const Function& function, const Reference& reference) {
  double most = 0;
  for (float x = from; x < to; x += step)
    most = std::max(most, ulps(function(x), reference(static_cast<double>(x))));
  return most;
}

double cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

BOOST_AUTO_TEST_CASE(exponential_is_within_one_and_a_half_ulp) {
  BOOST_TEST(worst(-87.3f, 88.7f, 1.37e-4f, exponential, [](double x) { return std::exp(x); }) < 1.5);
}

BOOST_AUTO_TEST_CASE(exponential_reaches_its_limits) {
  BOOST_TEST(exponential(0.0f) == 1.0f);
  BOOST_TEST(exponential(-0.0f) == 1.0f);
  BOOST_TEST(exponential(-infinity) == 0.0f);
  BOOST_TEST(exponential(-1e30f) == 0.0f);
  BOOST_TEST(exponential(-110.0f) == 0.0f);
  BOOST_TEST(exponential(infinity) == infinity);
  BOOST_TEST(exponential(88.73f) == infinity);
  BOOST_TEST(std::isfinite(exponential(88.72f)));
  BOOST_TEST(std::isnan(exponential(std::numeric_limits<float>::quiet_NaN())));
}

BOOST_AUTO_TEST_CASE(logistic_function_and_slope_are_within_five_ulp) {
  const double error =
      worst(-80.0f, 80.0f, 1.19e-4f, sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); });
  BOOST_TEST(error < 5.0);
  const auto slope = [](double x) { return std::exp(-x) / ((1 + std::exp(-x)) * (1 + std::exp(-x))); };
  BOOST_TEST(worst(
                 -80.0f, 80.0f, 1.19e-4f, [](float x) { return logistic(x).slope; }, slope) < 5.0);
  BOOST_TEST(sigmoid(-infinity) == 0.0f);
  BOOST_TEST(sigmoid(infinity) == 1.0f);
}

BOOST_AUTO_TEST_CASE(normal_distribution_is_within_six_ulp_in_both_tails) {
  BOOST_TEST(worst(
                 -12.8f, 12.8f, 2.1e-5f, [](float x) { return normal(x).cdf; }, cdf) < 6.0);
  const auto density = [](double x) { return std::exp(-0.5 * x * x) / std::sqrt(2 * std::acos(-1.0)); };
  BOOST_TEST(worst(
                 -12.8f, 12.8f, 2.1e-5f, [](float x) { return normal(x).density; }, density) < 6.0);
}

BOOST_AUTO_TEST_CASE(normal_distribution_reaches_its_limits) {
  BOOST_TEST(normal(-infinity).cdf == 0.0f);
  BOOST_TEST(normal(infinity).cdf == 1.0f);
  BOOST_TEST(normal(1e30f).density == 0.0f);
  BOOST_TEST(std::isnan(normal(std::numeric_limits<float>::quiet_NaN()).cdf));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
