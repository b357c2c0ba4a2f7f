// Slices hold each element once, and nothing else is taken for slices.
#include "slices.h"

#include <boost/test/unit_test.hpp>

#include "lockstep/base/error.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(slices)

using comm::ElementRange;
using comm::Slices;

BOOST_AUTO_TEST_CASE(a_rank_s_ranges_are_those_given_joined_and_without_empty_ones) {
  const Slices slices(100, {{{0, 10}, {10, 5}, {40, 0}, {90, 10}}, {}, {{15, 75}}});
  BOOST_TEST(slices.ranks() == 3);
  BOOST_TEST(slices.count() == 100);
  BOOST_REQUIRE_EQUAL(slices.of(0).size(), 2u);
  BOOST_TEST((slices.of(0)[0] == ElementRange{0, 15}));
  BOOST_TEST((slices.of(0)[1] == ElementRange{90, 10}));
  BOOST_TEST(slices.of(1).empty());
  BOOST_TEST((slices.of(2)[0] == ElementRange{15, 75}));
  BOOST_TEST(slices.count_of(0) == 25);
  BOOST_TEST(slices.count_of(1) == 0);
}

BOOST_AUTO_TEST_CASE(every_element_has_exactly_one_owner_or_the_slices_are_refused) {
  BOOST_CHECK_THROW(Slices(10, {}), UsageError);
  BOOST_CHECK_THROW(Slices(10, {{{0, 9}}}), UsageError);             // one is missing at the end
  BOOST_CHECK_THROW(Slices(10, {{{1, 9}}}), UsageError);             // at the beginning
  BOOST_CHECK_THROW(Slices(10, {{{0, 4}}, {{5, 5}}}), UsageError);   // in the middle
  BOOST_CHECK_THROW(Slices(10, {{{0, 6}}, {{5, 5}}}), UsageError);   // twice
  BOOST_CHECK_THROW(Slices(10, {{{0, 10}}, {{3, 2}}}), UsageError);  // within another
  BOOST_CHECK_THROW(Slices(10, {{{0, 11}}}), UsageError);            // beyond
  BOOST_CHECK_THROW(Slices(10, {{{5, 5}, {0, 5}}}), UsageError);     // not ascending
  BOOST_CHECK_THROW(Slices(10, {{{0, 12}, {12, -2}}}), UsageError);  // negative
  BOOST_CHECK_THROW(Slices(10, {{{-2, 2}, {0, 10}}}), UsageError);
  BOOST_TEST(Slices(0, {{}, {}}).count_of(1) == 0);
}

BOOST_AUTO_TEST_CASE(slices_that_differ_in_anything_have_another_digest) {
  const Slices slices(100, {{{0, 50}}, {{50, 50}}});
  BOOST_TEST(slices.digest() == Slices(100, {{{0, 20}, {20, 30}}, {{50, 50}}}).digest());
  BOOST_TEST(slices.digest() != Slices(100, {{{50, 50}}, {{0, 50}}}).digest());
  BOOST_TEST(slices.digest() != Slices(100, {{{0, 51}}, {{51, 49}}}).digest());
  BOOST_TEST(slices.digest() != Slices(101, {{{0, 50}}, {{50, 51}}}).digest());
  BOOST_TEST(slices.digest() != Slices(100, {{{0, 50}}, {{50, 50}}, {}}).digest());
}

BOOST_AUTO_TEST_CASE(even_slices_differ_by_at_most_one_line_of_sixteen_elements) {
  for (const std::int64_t count : {0, 1, 15, 16, 17, 1000, 12345}) {
    for (int ranks = 1; ranks <= 16; ++ranks) {
      const Slices slices = comm::even_slices(count, ranks);
      std::int64_t least = count, most = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const std::int64_t owned = (slices.count_of(rank) + 15) / 16;
        least = std::min(least, owned);
        most = std::max(most, owned);
        for (const ElementRange range : slices.of(rank)) BOOST_TEST(range.first % 16 == 0);
      }
      BOOST_TEST(most - least <= 1);
    }
  }
}

BOOST_AUTO_TEST_CASE(random_slices_are_slices) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200; ++i) {
    const Slices slices = random_slices(random, i, 1 + i % 5, 7);
    std::int64_t owned = 0;
    for (int rank = 0; rank < slices.ranks(); ++rank) owned += slices.count_of(rank);
    BOOST_TEST(owned == i);
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
