// Slow is not stuck, and who is told missing is the one who is.
#include "train/hang_judge.h"

#include <boost/test/unit_test.hpp>

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(hang_judge)

using train::HangJudge;
using State = HangJudge::State;
constexpr double timeout_s = 10, slack_s = 1;

BOOST_AUTO_TEST_CASE(a_rank_that_gets_on_is_never_missing) {
  HangJudge judge(1, timeout_s, slack_s);
  for (int i = 0; i < 100; ++i) {
    judge.see(0, {.marks = static_cast<std::uint64_t>(i), .beats = static_cast<std::uint64_t>(i)}, 9.0 * i);
    BOOST_TEST((judge.state(0, 9.0 * i + 8.9) == State::fine));
  }
}

BOOST_AUTO_TEST_CASE(a_rank_that_lives_but_gets_no_further_is_stuck_unless_it_waits) {
  HangJudge judge(2, timeout_s, slack_s);
  for (int i = 0; i <= 20; ++i) {
    const auto beats = static_cast<std::uint64_t>(i);
    judge.see(0, {.marks = 5, .beats = beats}, i);
    judge.see(1, {.marks = 7, .beats = beats, .waiting = true}, i);
    BOOST_TEST((judge.state(0, i) == (i > 10 ? State::stuck : State::fine)), i);
    BOOST_TEST((judge.state(1, i) == State::fine), i);
    BOOST_TEST(!judge.all_wait(i), i);
  }
}

BOOST_AUTO_TEST_CASE(a_rank_that_looks_no_longer_for_whom_it_waits_is_stuck) {
  HangJudge judge(2, timeout_s, slack_s);
  for (int i = 0; i <= 20; ++i) {
    const auto count = static_cast<std::uint64_t>(i);
    judge.see(0, {.marks = 5, .beats = count, .waiting = true, .polling = true, .looks = 3}, i);
    judge.see(1, {.marks = 5, .beats = count, .waiting = true, .polling = true, .looks = count}, i);
    BOOST_TEST((judge.state(0, i) == (i > 10 ? State::stuck : State::fine)), i);
    BOOST_TEST((judge.state(1, i) == State::fine), i);
  }
}

BOOST_AUTO_TEST_CASE(a_process_without_a_sign_of_life_is_silent_even_where_it_waits) {
  HangJudge judge(1, timeout_s, slack_s);
  judge.see(0, {.marks = 1, .beats = 1, .waiting = true}, 0);
  judge.see(0, {.marks = 1, .beats = 1, .waiting = true}, 10);
  BOOST_TEST((judge.state(0, 10) == State::fine));
  judge.see(0, {.marks = 1, .beats = 1, .waiting = true}, 10.5);
  BOOST_TEST((judge.state(0, 10.5) == State::silent));
  judge.see(0, {.marks = 1, .beats = 2, .waiting = true}, 11);  // it was stopped, and continues
  BOOST_TEST((judge.state(0, 11) == State::fine));
}

BOOST_AUTO_TEST_CASE(ranks_that_all_wait_are_noticed_later_than_one_that_is_missing) {
  HangJudge judge(2, timeout_s, slack_s);
  for (int i = 0; i <= 12; ++i) {
    for (int rank = 0; rank < 2; ++rank)
      judge.see(rank, {.marks = 3, .beats = static_cast<std::uint64_t>(i), .waiting = true}, i);
    BOOST_TEST(judge.all_wait(i) == (i > 11), i);
  }
  judge.see(1, {.marks = 4, .beats = 13, .waiting = true}, 13);
  BOOST_TEST(!judge.all_wait(13));
}

BOOST_AUTO_TEST_CASE(a_rank_out_of_sight_is_not_judged_and_starts_anew) {
  HangJudge judge(2, timeout_s, slack_s);
  judge.see(0, {.marks = 1, .beats = 1}, 0);
  judge.lose_sight(0);
  BOOST_TEST((judge.state(0, 100) == State::fine));
  BOOST_TEST(!judge.all_wait(100));
  judge.see(0, {.marks = 1, .beats = 1}, 100);
  BOOST_TEST((judge.state(0, 105) == State::fine));
  BOOST_TEST((judge.state(0, 111) == State::silent));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
