// The branch-free float functions against double-precision libm.
#include "lockstep/ops/math.h"

#include <boost/test/unit_test.hpp>
#include <limits>

#include "base/cores.h"

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

BOOST_AUTO_TEST_CASE(exponential_less_one_is_within_three_ulp_near_zero_too) {
  const auto reference = [](double x) { return std::expm1(x); };
  BOOST_TEST(worst(-30.0f, -1e-3f, 1.3e-5f, exponential_less_one, reference) < 3.0);
  BOOST_TEST(worst(-1e-3f, -1e-9f, 1.3e-9f, exponential_less_one, reference) < 3.0);
  BOOST_TEST(exponential_less_one(-infinity) == -1.0f);
  BOOST_TEST(exponential_less_one(0.0f) == 0.0f);
}

BOOST_AUTO_TEST_CASE(logarithm_is_within_three_ulp) {
  const auto reference = [](double x) { return std::log(x); };
  double most = 0;
  for (float x = 1.2e-38f; x < 3e38f; x *= 1.00003f)
    most = std::max(most, ulps(logarithm(x), reference(static_cast<double>(x))));
  BOOST_TEST(most < 3.0);
  BOOST_TEST(worst(0.5f, 2.0f, 1e-6f, logarithm, reference) < 3.0);
  BOOST_TEST(worst(1e-5f, 1.0f, 1e-6f, logarithm_one_plus, [](double x) { return std::log1p(x); }) < 3.0);
  BOOST_TEST(logarithm_one_plus(0.0f) == 0.0f);
}

BOOST_AUTO_TEST_CASE(logarithm_reaches_its_limits) {
  BOOST_TEST(logarithm(1.0f) == 0.0f);
  BOOST_TEST(logarithm(0.0f) == -infinity);
  BOOST_TEST(logarithm(infinity) == infinity);
  BOOST_TEST(std::isnan(logarithm(-1.0f)));
  BOOST_TEST(std::isnan(logarithm(std::numeric_limits<float>::quiet_NaN())));
}

BOOST_AUTO_TEST_CASE(power_is_within_two_ulp) {
  for (const float exponent : {2.0f, 3.0f, -1.5f, 0.5f, 0.1f, -7.0f, 17.25f}) {
    double most = 0;
    const auto reference = [=](double x) { return std::pow(x, static_cast<double>(exponent)); };
    for (float x = 1e-30f; x < 1e30f; x *= 1.0001f) {
      const double wanted = reference(static_cast<double>(x));
      if (wanted > 1.2e-38 && wanted < 3.4e38) most = std::max(most, ulps(power(x, exponent), wanted));
    }
    BOOST_TEST(most < 2.0, exponent << ": " << most);
  }
}

BOOST_AUTO_TEST_CASE(power_has_the_limits_of_pow) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float exponent : {0.0f, 1.0f, 2.0f, 3.0f, -1.0f, -2.0f, 0.5f, -0.5f}) {
    for (const float x : {0.0f, -0.0f, 1.0f, -1.0f, -2.0f, infinity, -infinity, nan, 1e38f, -1e38f}) {
      const float wanted = std::pow(x, exponent), found = power(x, exponent);
      BOOST_TEST(
          ((found == wanted && std::signbit(found) == std::signbit(wanted)) ||
           (std::isnan(found) && std::isnan(wanted)) || std::abs(found - wanted) < 1e-6f * std::abs(wanted)),
          x << " to " << exponent << " is " << found << ", not " << wanted);
    }
  }
}

BOOST_AUTO_TEST_CASE(sine_and_cosine_are_within_two_ulp_or_1e_7_at_any_size) {
  double most = 0;
  for (float size = 1e-3f; size < 8e12f; size *= 1.00007f) {
    for (const float x : {size, -size}) {
      most = std::max(most, std::abs(sine(x) - std::sin(static_cast<double>(x))));
      most = std::max(most, std::abs(cosine(x) - std::cos(static_cast<double>(x))));
    }
  }
  BOOST_TEST(most < 1e-7);
  BOOST_TEST(worst(1e-4f, 1.5f, 1e-6f, sine, [](double x) { return std::sin(x); }) < 2.0);
  BOOST_TEST(sine(0.0f) == 0.0f);
  BOOST_TEST(cosine(0.0f) == 1.0f);
  BOOST_TEST(std::abs(sine(1e38f)) <= 1.0f);
  BOOST_TEST(std::isnan(sine(infinity)));
}

BOOST_AUTO_TEST_CASE(hyperbolic_tangent_is_within_four_ulp) {
  const auto reference = [](double x) { return std::tanh(x); };
  BOOST_TEST(worst(-12.0f, -1e-3f, 1.1e-5f, hyperbolic_tangent, reference) < 4.0);
  BOOST_TEST(worst(1e-6f, 1e-3f, 1.1e-9f, hyperbolic_tangent, reference) < 4.0);
  BOOST_TEST(hyperbolic_tangent(infinity) == 1.0f);
  BOOST_TEST(hyperbolic_tangent(-infinity) == -1.0f);
  BOOST_TEST(hyperbolic_tangent(0.0f) == 0.0f);
  BOOST_TEST(std::isnan(hyperbolic_tangent(std::numeric_limits<float>::quiet_NaN())));
}

BOOST_AUTO_TEST_CASE(error_function_is_within_four_ulp) {
  const auto reference = [](double x) { return std::erf(x); };
  BOOST_TEST(worst(-5.0f, -1e-3f, 3.1e-6f, error_function, reference) < 4.0);
  BOOST_TEST(worst(1e-6f, 1e-3f, 1.1e-9f, error_function, reference) < 4.0);
  BOOST_TEST(error_function(infinity) == 1.0f);
  BOOST_TEST(error_function(-infinity) == -1.0f);
  BOOST_TEST(std::isnan(error_function(std::numeric_limits<float>::quiet_NaN())));
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
