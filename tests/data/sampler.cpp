// DistributedSampler beyond the golden rows: shuffling, epochs, misuse.
#include "lockstep/data/sampler.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "data/files.h"
#include "lockstep/base/error.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(sampler)

using data::DistributedSampler;

std::vector<std::int64_t> of_all_ranks(DistributedSampler::Options options, std::uint64_t epoch) {
  std::vector<std::int64_t> all;
  for (options.rank = 0; options.rank < options.ranks; ++options.rank) {
    DistributedSampler sampler(options);
    sampler.set_epoch(epoch);
    const auto indices = sampler.indices();
    all.insert(all.end(), indices.begin(), indices.end());
  }
  return all;
}

BOOST_AUTO_TEST_CASE(shuffled_ranks_cover_every_sample_and_epochs_differ) {
  const DistributedSampler::Options options{.length = 23, .ranks = 4, .seed = 9};
  std::vector<std::int64_t> first = of_all_ranks(options, 0);
  BOOST_TEST(first == of_all_ranks(options, 0));
  BOOST_TEST(first != of_all_ranks(options, 1));
  BOOST_TEST(first.size() == 24u);
  std::sort(first.begin(), first.end());
  first.erase(std::unique(first.begin(), first.end()), first.end());
  BOOST_TEST(first == range(0, 23));
}

BOOST_AUTO_TEST_CASE(dropping_gives_no_sample_twice) {
  std::vector<std::int64_t> all = of_all_ranks({.length = 23, .ranks = 4, .drop_last = true}, 2);
  BOOST_TEST(all.size() == 20u);
  std::sort(all.begin(), all.end());
  BOOST_TEST((std::adjacent_find(all.begin(), all.end()) == all.end()));
}

BOOST_AUTO_TEST_CASE(sets_too_small_for_the_ranks_are_repeated_or_dropped_whole) {
  BOOST_TEST(of_all_ranks({.length = 2, .ranks = 5, .shuffle = false}, 0) ==
             (std::vector<std::int64_t>{0, 1, 0, 1, 0}));
  BOOST_TEST(of_all_ranks({.length = 2, .ranks = 5, .drop_last = true}, 0).empty());
  BOOST_TEST(of_all_ranks({.length = 0, .ranks = 3}, 0).empty());
}

BOOST_AUTO_TEST_CASE(misuse_is_refused) {
  BOOST_CHECK_THROW(DistributedSampler({.length = 2, .ranks = 2, .rank = 2}), UsageError);
  BOOST_CHECK_THROW(DistributedSampler({.length = 2, .ranks = 0}), UsageError);
  BOOST_CHECK_THROW(DistributedSampler({.length = -1}), UsageError);
  BOOST_CHECK_THROW(DistributedSampler({.length = 2})[2], UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
