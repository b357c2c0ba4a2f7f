// Histograms: exact numbers, and each value in the bucket whose limits enclose it.
#include "report/event.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(histogram)

using report::Histogram;

/// Of every sign and magnitude, zeros and denormals too.
std::vector<float> many_values() {
  std::mt19937 random(7);
  std::vector<float> values{0.0F,
                            -0.0F,
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::lowest(),
                            std::numeric_limits<float>::denorm_min(),
                            -std::numeric_limits<float>::min()};
  std::uniform_real_distribution<float> mantissa(-2, 2);
  std::uniform_int_distribution<int> exponent(-140, 120);
  for (int v = 0; v < 20000; ++v) values.push_back(std::ldexp(mantissa(random), exponent(random)));
  return values;
}

BOOST_AUTO_TEST_CASE(the_numbers_are_exact_in_float64) {
  const std::vector<float> values = many_values();
  Histogram histogram;
  histogram.add(values, 3);
  double sum = 0, sum_squares = 0, least = INFINITY, greatest = -INFINITY;
  for (const float value : values) {
    const double exact = value / 3.0;
    sum += exact;
    sum_squares += exact * exact;
    least = std::min(least, exact);
    greatest = std::max(greatest, exact);
  }
  BOOST_TEST(histogram.count() == static_cast<std::int64_t>(values.size()));
  BOOST_TEST(histogram.sum() == sum);
  BOOST_TEST(histogram.sum_squares() == sum_squares);
  BOOST_TEST(histogram.min() == least);
  BOOST_TEST(histogram.max() == greatest);
}

BOOST_AUTO_TEST_CASE(pieces_add_up_to_the_whole) {
  const std::vector<float> values = many_values();
  Histogram whole, pieces;
  whole.add(values);
  pieces.add(std::span(values).first(1234));
  pieces.add(std::span(values).subspan(1234));
  BOOST_TEST(pieces.sum() == whole.sum());
  BOOST_TEST(pieces.buckets().limits == whole.buckets().limits);
  BOOST_TEST(pieces.buckets().counts == whole.buckets().counts);
}

BOOST_AUTO_TEST_CASE(every_value_is_counted_between_the_limits_of_its_bucket) {
  std::vector<float> values = many_values();
  Histogram histogram;
  histogram.add(values);
  const Histogram::Buckets buckets = histogram.buckets();
  BOOST_TEST(buckets.limits.size() == buckets.counts.size());
  BOOST_TEST(std::ranges::is_sorted(buckets.limits));
  BOOST_TEST((std::ranges::adjacent_find(buckets.limits) == buckets.limits.end()));
  BOOST_TEST(std::accumulate(buckets.counts.begin(), buckets.counts.end(), 0.0) ==
             static_cast<double>(values.size()));
  // Values on a limit belong to the side of the larger magnitude. The counts up to each limit:
  double counted = 0;
  for (std::size_t b = 0; b < buckets.limits.size(); ++b) {
    counted += buckets.counts[b];
    const double limit = buckets.limits[b];
    const auto below =
        std::ranges::count_if(values, [&](float v) { return limit > 0 ? v < limit : v <= limit && v != 0; });
    BOOST_TEST_CONTEXT("limit " << limit) BOOST_TEST(counted == static_cast<double>(below));
  }
}

BOOST_AUTO_TEST_CASE(buckets_are_at_most_an_eighth_wide) {
  Histogram histogram;
  std::vector<float> values;
  for (float value = 1; value < 1000; value *= 1.01F) values.push_back(value);
  histogram.add(values);
  const std::vector<double> limits = histogram.buckets().limits;
  for (std::size_t b = 1; b < limits.size(); ++b) BOOST_TEST(limits[b] / limits[b - 1] <= 1.125);
}

BOOST_AUTO_TEST_CASE(a_run_of_empty_buckets_is_one) {
  Histogram histogram;
  const float values[] = {-1e30F, 0, 1e-30F, 1e30F};
  histogram.add(values);
  BOOST_TEST(histogram.buckets().counts == (std::vector<double>{1, 0, 1, 0, 1, 0, 1}));
}

BOOST_AUTO_TEST_CASE(values_that_are_not_finite_are_left_out) {
  Histogram histogram;
  const float values[] = {NAN, INFINITY, -INFINITY};
  histogram.add(values);
  BOOST_TEST(histogram.count() == 0);
  BOOST_TEST(histogram.buckets().limits.empty());
  const float one[] = {1, NAN};
  histogram.add(one);
  BOOST_TEST(histogram.count() == 1);
  BOOST_TEST(histogram.sum() == 1);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
