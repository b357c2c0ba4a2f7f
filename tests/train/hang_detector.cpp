// Slow is not stuck, and the rank that is reported is the one that hangs.
#include "train/watch/hang_detector.h"

#include <boost/test/unit_test.hpp>

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(hang_detector)

using progress::RankStatus;
using train::HangDetector;
using Health = HangDetector::Health;
constexpr double timeout_s = 10, delay_s = 1;

BOOST_AUTO_TEST_CASE(a_rank_that_makes_progress_is_healthy) {
  HangDetector detector(1, timeout_s, delay_s);
  RankStatus rank;
  for (int i = 0; i < 100; ++i) {
    rank.ticks = i;
    rank.heartbeats = i;
    detector.observe(0, rank, 9.0 * i);
    BOOST_TEST((detector.health(0, 9.0 * i + 8.9) == Health::healthy));
  }
}

BOOST_AUTO_TEST_CASE(a_rank_that_lives_but_makes_no_progress_is_stuck_unless_it_waits) {
  HangDetector detector(2, timeout_s, delay_s);
  RankStatus works, waits;
  waits.waiting = 1;
  for (int i = 0; i <= 20; ++i) {
    works.heartbeats = i;
    waits.heartbeats = i;
    detector.observe(0, works, i);
    detector.observe(1, waits, i);
    BOOST_TEST((detector.health(0, i) == (i > 10 ? Health::stuck : Health::healthy)), i);
    BOOST_TEST((detector.health(1, i) == Health::healthy), i);
    BOOST_TEST(!detector.all_wait(i), i);
  }
}

BOOST_AUTO_TEST_CASE(a_rank_that_stops_polling_while_it_waits_is_stuck) {
  HangDetector detector(2, timeout_s, delay_s);
  RankStatus stopped, polls;
  for (RankStatus* const rank : {&stopped, &polls}) rank->waiting = rank->polling = 1;
  for (int i = 0; i <= 20; ++i) {
    stopped.heartbeats = i;
    polls.heartbeats = i;
    polls.polls = i;
    detector.observe(0, stopped, i);
    detector.observe(1, polls, i);
    BOOST_TEST((detector.health(0, i) == (i > 10 ? Health::stuck : Health::healthy)), i);
    BOOST_TEST((detector.health(1, i) == Health::healthy), i);
  }
}

BOOST_AUTO_TEST_CASE(a_process_without_a_sign_of_life_is_silent_even_while_it_waits) {
  HangDetector detector(1, timeout_s, delay_s);
  RankStatus rank;
  rank.waiting = 1;
  detector.observe(0, rank, 0);
  detector.observe(0, rank, 10);
  BOOST_TEST((detector.health(0, 10) == Health::healthy));
  detector.observe(0, rank, 10.5);
  BOOST_TEST((detector.health(0, 10.5) == Health::silent));
  rank.heartbeats = 1;  // it was stopped, and continues
  detector.observe(0, rank, 11);
  BOOST_TEST((detector.health(0, 11) == Health::healthy));
}

BOOST_AUTO_TEST_CASE(ranks_that_all_wait_are_noticed_later_than_one_that_hangs) {
  HangDetector detector(2, timeout_s, delay_s);
  RankStatus status;
  status.waiting = 1;
  for (int i = 0; i <= 12; ++i) {
    status.heartbeats = i;
    for (int rank = 0; rank < 2; ++rank) detector.observe(rank, status, i);
    BOOST_TEST(detector.all_wait(i) == (i > 11), i);
  }
  status.ticks = 1;
  detector.observe(1, status, 13);
  BOOST_TEST(!detector.all_wait(13));
}

BOOST_AUTO_TEST_CASE(a_rank_that_is_unreachable_counts_as_healthy_and_starts_anew) {
  HangDetector detector(2, timeout_s, delay_s);
  const RankStatus rank;
  detector.observe(0, rank, 0);
  detector.mark_unreachable(0);
  BOOST_TEST((detector.health(0, 100) == Health::healthy));
  BOOST_TEST(!detector.all_wait(100));
  detector.observe(0, rank, 100);
  BOOST_TEST((detector.health(0, 105) == Health::healthy));
  BOOST_TEST((detector.health(0, 111) == Health::silent));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
