// Shuffles: bijective at every size, different in every epoch, and without a preferred place.
#include "lockstep/data/sampler.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <numeric>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(permutation)

using data::Permutation;

std::vector<std::int64_t> all_of(const Permutation& permutation) {
  std::vector<std::int64_t> places(static_cast<std::size_t>(permutation.size()));
  for (std::int64_t i = 0; i < permutation.size(); ++i) places[static_cast<std::size_t>(i)] = permutation(i);
  return places;
}

BOOST_AUTO_TEST_CASE(every_size_is_permuted_onto_itself) {
  std::vector<std::int64_t> sizes{1023, 1024, 1025, 4096, 4099, 65537, 100000};
  for (std::int64_t size = 1; size <= 300; ++size) sizes.push_back(size);
  for (const std::int64_t size : sizes) {
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<std::int64_t> places = all_of(Permutation(size, 17, epoch));
      std::sort(places.begin(), places.end());
      for (std::int64_t i = 0; i < size; ++i) BOOST_REQUIRE(places[static_cast<std::size_t>(i)] == i);
    }
  }
}

BOOST_AUTO_TEST_CASE(seeds_and_epochs_give_different_orders_and_the_same_ones_again) {
  const auto first = all_of(Permutation(1000, 1, 0));
  BOOST_TEST(first == all_of(Permutation(1000, 1, 0)));
  BOOST_TEST(first != all_of(Permutation(1000, 1, 1)));
  BOOST_TEST(first != all_of(Permutation(1000, 2, 0)));
}

BOOST_AUTO_TEST_CASE(no_element_prefers_a_place) {
  // Over many epochs each (element, place) pair of a small set is about equally frequent: chi-square with
  // (size - 1)^2 degrees of freedom, the bound at about five standard deviations.
  for (const std::int64_t size : {2, 3, 5, 10, 16, 37}) {
    const int epochs = 4000;
    std::vector<double> counts(static_cast<std::size_t>(size * size));
    for (int epoch = 0; epoch < epochs; ++epoch) {
      const Permutation permutation(size, 3, static_cast<std::uint64_t>(epoch));
      for (std::int64_t i = 0; i < size; ++i) ++counts[static_cast<std::size_t>(i * size + permutation(i))];
    }
    const double expected = static_cast<double>(epochs) / static_cast<double>(size);
    double chi_square = 0;
    for (const double count : counts) chi_square += (count - expected) * (count - expected) / expected;
    const double freedom = static_cast<double>((size - 1) * (size - 1));
    BOOST_TEST(chi_square < freedom + 5 * std::sqrt(2 * freedom) + 5, "size " << size << ": " << chi_square);
  }
}

BOOST_AUTO_TEST_CASE(neighbours_are_torn_apart) {
  const auto places = all_of(Permutation(10000, 1, 0));
  int steps_of_one = 0, ascents = 0;
  for (std::size_t i = 1; i < places.size(); ++i) {
    steps_of_one += std::abs(places[i] - places[i - 1]) == 1;
    ascents += places[i] > places[i - 1];
  }
  BOOST_TEST(steps_of_one < 20);  // two are expected
  BOOST_TEST(std::abs(ascents - 5000) < 150);
}

BOOST_AUTO_TEST_CASE(huge_sizes_cost_no_memory) {
  const std::int64_t size = (std::int64_t{1} << 62) - 57;
  const Permutation permutation(size, 1, 0);
  for (std::int64_t i = 0; i < 1000; ++i) {
    const std::int64_t place = permutation(i);
    BOOST_REQUIRE(place >= 0);
    BOOST_REQUIRE(place < size);
  }
  BOOST_CHECK_THROW(Permutation(0, 1, 0), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
