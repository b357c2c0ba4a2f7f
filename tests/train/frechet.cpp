// The Frechet distance against its formula where that is known, and statistics against sums of another order.
#include "train/infer/frechet.h"

#include <boost/test/unit_test.hpp>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(frechet)

using train::FeatureStatistics;

/// Rows of two features: means 3 and -1, deviations `a` and `b`.
Tensor normal_rows(std::int64_t rows, float a, float b, std::uint64_t seed, float offset = 0) {
  const Random random({seed, purpose_of("rows"), 0, 0});
  const Tensor tensor = Tensor::empty({rows, 2});
  for (std::int64_t n = 0; n < rows; ++n) {
    tensor.data<float>()[2 * n] = offset + 3 + a * random.normal(static_cast<std::uint64_t>(2 * n));
    tensor.data<float>()[2 * n + 1] = offset - 1 + b * random.normal(static_cast<std::uint64_t>(2 * n + 1));
  }
  return tensor;
}

FeatureStatistics of(const Tensor& rows, std::int64_t chunk = 64) {
  FeatureStatistics statistics;
  for (std::int64_t n = 0; n < rows.size(0); n += chunk)
    statistics.add(rows.rows(n, std::min(n + chunk, rows.size(0))));
  return statistics;
}

BOOST_AUTO_TEST_CASE(mean_and_covariance_are_those_of_the_definition_also_far_from_zero) {
  const Tensor rows = normal_rows(1000, 2, 0.5f, 1, 1e4f);
  double mean[2] = {0, 0}, product[2][2] = {{0, 0}, {0, 0}};
  const auto at = [&](std::int64_t n, int f) { return static_cast<double>(rows.data<float>()[2 * n + f]); };
  for (std::int64_t n = 0; n < 1000; ++n)
    for (int f = 0; f < 2; ++f) mean[f] += at(n, f) / 1000;
  for (std::int64_t n = 0; n < 1000; ++n)
    for (int f = 0; f < 2; ++f)
      for (int g = 0; g < 2; ++g) product[f][g] += (at(n, f) - mean[f]) * (at(n, g) - mean[g]) / 999;
  const FeatureStatistics found = of(rows, 7);
  BOOST_TEST(found.count() == 1000);
  for (int f = 0; f < 2; ++f) {
    BOOST_TEST(found.mean()[static_cast<std::size_t>(f)] == mean[f], boost::test_tools::tolerance(1e-12));
    for (int g = 0; g < 2; ++g)
      BOOST_TEST(std::abs(found.covariance()[static_cast<std::size_t>(2 * f + g)] - product[f][g]) < 1e-9);
  }
}

BOOST_AUTO_TEST_CASE(of_features_that_do_not_depend_on_each_other_it_is_a_sum_over_features) {
  const FeatureStatistics a = of(normal_rows(20000, 2, 0.5f, 1)),
                          b = of(normal_rows(20000, 1, 1.5f, 2, 0.25f));
  // |0.25|^2 twice, and of each feature (deviation a - deviation b)^2
  BOOST_TEST(train::frechet_distance(a, b) == 0.125 + 1 + 1, boost::test_tools::tolerance(0.03));
  BOOST_TEST(train::frechet_distance(a, b) == train::frechet_distance(b, a),
             boost::test_tools::tolerance(1e-9));
  BOOST_TEST(train::frechet_distance(a, a) < 1e-9);
}

/// Of covariances [[1, r], [r, 1]] and the unit matrix: 4 - 2 (sqrt(1 + r) + sqrt(1 - r)).
BOOST_AUTO_TEST_CASE(of_features_that_depend_on_each_other_it_is_that_of_the_eigenvalues) {
  const auto rows_of = [](float share, std::uint64_t seed) {
    const Tensor rows = normal_rows(40000, 1, 1, seed);
    for (std::int64_t n = 0; n < rows.size(0); ++n) {
      float& second = rows.data<float>()[2 * n + 1];
      second = -1 + share * (rows.data<float>()[2 * n] - 3) + std::sqrt(1 - share * share) * (second + 1);
    }
    return rows;
  };
  const double found = train::frechet_distance(of(rows_of(0.8f, 1)), of(rows_of(0, 2)));
  BOOST_TEST(found == 4 - 2 * (std::sqrt(1.8) + std::sqrt(0.2)), boost::test_tools::tolerance(0.05));
}

BOOST_AUTO_TEST_CASE(features_that_are_always_zero_add_nothing_and_what_is_not_finite_gives_no_number) {
  const auto with_zeros = [](const Tensor& rows) {
    const Tensor wide = Tensor::zeros({rows.size(0), 5});
    for (std::int64_t n = 0; n < rows.size(0); ++n)
      for (int f = 0; f < 2; ++f) wide.data<float>()[5 * n + 1 + f] = rows.data<float>()[2 * n + f];
    return wide;
  };
  const Tensor a = normal_rows(500, 2, 1, 1), b = normal_rows(500, 1, 1, 2);
  BOOST_TEST(
      train::frechet_distance(of(with_zeros(a)), of(with_zeros(b))) == train::frechet_distance(of(a), of(b)),
      boost::test_tools::tolerance(1e-9));
  b.data<float>()[6] = std::nanf("");
  BOOST_TEST(std::isnan(train::frechet_distance(of(a), of(b))));
}

BOOST_AUTO_TEST_CASE(what_has_no_distance_is_refused) {
  const FeatureStatistics two = of(normal_rows(9, 1, 1, 1));
  FeatureStatistics one;
  BOOST_CHECK_THROW(train::frechet_distance(two, one), UsageError);
  one.add(Tensor::zeros({1, 2}));
  BOOST_CHECK_THROW(train::frechet_distance(two, one), UsageError);
  BOOST_CHECK_THROW(one.add(Tensor::zeros({4, 3})), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
