// Splits and views.
#include "lockstep/data/dataset.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "data/files.h"
#include "lockstep/base/error.h"
#include "lockstep/data/text.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(split)

/// The base's samples of a subset, read through it.
std::vector<std::int64_t> contents(const data::Subset& subset) {
  return values_of<std::int64_t>(Samples(subset, range(0, subset.size())).y);
}

BOOST_AUTO_TEST_CASE(the_parts_are_disjoint_and_complete_and_as_large_as_asked) {
  for (const std::int64_t size : {2, 3, 10, 97, 1797}) {
    for (const double fraction : {0.01, 0.2, 0.5}) {
      const Counting base(size);
      const data::Split split = data::split(base, fraction, 1);
      BOOST_TEST(split.eval.size() ==
                 std::max<std::int64_t>(1, std::llround(fraction * static_cast<double>(size))));
      std::vector<std::int64_t> all = contents(split.train);
      for (const std::int64_t sample : contents(split.eval)) all.push_back(sample);
      std::sort(all.begin(), all.end());
      BOOST_TEST(all == range(0, size));
    }
  }
}

BOOST_AUTO_TEST_CASE(the_seed_decides_and_nothing_else) {
  const Counting base(500);
  const auto first = contents(data::split(base, 0.2, 1).eval);
  BOOST_TEST(first == contents(data::split(base, 0.2, 1).eval));
  BOOST_TEST(first != contents(data::split(base, 0.2, 2).eval));
}

BOOST_AUTO_TEST_CASE(the_end_of_a_text_is_held_out) {
  const TemporaryFolder folder;
  const data::Text text(make_text(folder, "t.h5", 101), 10);
  const data::Split split = data::split(text, 0.3, 1);
  BOOST_TEST(split.train.size() == 7);
  BOOST_TEST(split.eval.size() == 3);
  BOOST_TEST(split.eval.base_sample(0) == 7);
  BOOST_TEST(Samples(split.eval, {0}).x.data<std::int64_t>()[0] == 70);
  BOOST_TEST(split.eval.sequential());
}

BOOST_AUTO_TEST_CASE(fractions_and_sizes_that_make_no_sense_are_refused) {
  const Counting base(10), single(1);
  for (const double fraction : {0.0, 1.0, -0.5, std::nan("")}) {
    BOOST_CHECK_THROW(data::split(base, fraction, 1), UsageError);
  }
  BOOST_CHECK_EXCEPTION(data::split(single, 0.5, 1), DataError, mentions("1 samples are too few"));
  BOOST_CHECK_THROW(data::Subset(base, 5, 6), UsageError);
}

BOOST_AUTO_TEST_CASE(a_subset_reads_more_samples_than_it_translates_at_once) {
  const Counting base(1000);
  const data::Subset subset(base, 100, 300);
  BOOST_TEST(contents(subset) == range(100, 400));
  BOOST_CHECK_THROW(Samples(subset, {300}), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
