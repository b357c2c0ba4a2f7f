// A rank that computes longer than 1.5 times the median, and 1 ms longer, for 20 steps is named, once.
#include "train/watch/stragglers.h"

#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(stragglers)

using train::Stragglers;

/// What is said in so many steps of these times.
std::string said(Stragglers& stragglers, const std::vector<double>& ms, int steps) {
  std::string text;
  for (int step = 0; step < steps; ++step)
    text += stragglers.note([&](int rank) { return ms[static_cast<std::size_t>(rank)]; });
  return text;
}

BOOST_AUTO_TEST_CASE(a_slow_rank_is_named_after_20_steps_and_once) {
  Stragglers stragglers({1, 1, 1, 1});
  BOOST_TEST(said(stragglers, {10, 10, 10, 16}, 19) == "");
  BOOST_TEST(said(stragglers, {10, 10, 10, 16}, 1) ==
             "rank 3 is slow: 16.0 ms a shard, 1.6 times the median of the ranks, for 20 steps");
  BOOST_TEST(said(stragglers, {10, 10, 10, 16}, 100) == "");
  BOOST_TEST(said(stragglers, {10, 10, 10, 12}, 19) == "");
  BOOST_TEST(said(stragglers, {10, 10, 10, 12}, 1) == "rank 3 keeps up again");
  BOOST_TEST(said(stragglers, {10, 10, 10, 12}, 100) == "");
}

BOOST_AUTO_TEST_CASE(single_slow_steps_name_nobody) {
  Stragglers stragglers({1, 1, 1});
  for (int i = 0; i < 10; ++i) {
    BOOST_TEST(said(stragglers, {10, 10, 90}, 19) == "");
    BOOST_TEST(said(stragglers, {10, 10, 10}, 1) == "");
  }
}

BOOST_AUTO_TEST_CASE(less_than_a_millisecond_is_no_slowness) {
  Stragglers stragglers({1, 1});
  BOOST_TEST(said(stragglers, {0.1, 0.9}, 50) == "");
  BOOST_TEST(said(stragglers, {0.1, 1.2}, 20) ==
             "rank 1 is slow: 1.2 ms a shard, 12.0 times the median of the ranks, for 20 steps");
}

BOOST_AUTO_TEST_CASE(more_shards_are_not_slowness) {
  Stragglers stragglers({2, 2, 1, 0});
  BOOST_TEST(said(stragglers, {20, 20, 10, 0.01}, 50) == "");
  BOOST_TEST(said(stragglers, {20, 20, 20, 0.01}, 20) ==
             "rank 2 is slow: 20.0 ms a shard, 2.0 times the median of the ranks, for 20 steps");
}

BOOST_AUTO_TEST_CASE(of_two_ranks_one_can_be_slow_and_one_alone_cannot) {
  Stragglers two({1, 1});
  BOOST_TEST(said(two, {30, 10}, 20) ==
             "rank 0 is slow: 30.0 ms a shard, 3.0 times the median of the ranks, for 20 steps");
  Stragglers one({4});
  BOOST_TEST(said(one, {30}, 50) == "");
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
