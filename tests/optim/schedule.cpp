// Learning-rate schedules against values worked out by hand.
#include "lockstep/optim/schedule.h"

#include <boost/test/unit_test.hpp>
#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(schedule)

using namespace optim;

using Kind = Schedule::Kind;
constexpr double tiny = 1e-12;

BOOST_AUTO_TEST_CASE(constant_stays) {
  const Schedule schedule{.kind = Kind::constant, .lr = 0.25, .min_lr = 0.1};
  for (const int step : {0, 1, 99, 100, 5000}) BOOST_TEST(schedule.at(step, 100) == 0.25);
}

BOOST_AUTO_TEST_CASE(warm_up_grows_from_lr_over_steps_to_lr) {
  for (const Kind kind : {Kind::constant, Kind::cosine, Kind::linear}) {
    const Schedule schedule{.kind = kind, .lr = 0.8, .warmup_steps = 4};
    for (int step = 0; step < 4; ++step)
      BOOST_TEST(std::abs(schedule.at(step, 100) - 0.2 * (step + 1)) < tiny);
    BOOST_TEST(schedule.at(4, 100) == 0.8);
  }
}

BOOST_AUTO_TEST_CASE(linear_is_a_straight_line_to_min_lr) {
  const Schedule schedule{.kind = Kind::linear, .lr = 1, .min_lr = 0.2, .warmup_steps = 10};
  BOOST_TEST(std::abs(schedule.at(20, 50) - 0.8) < tiny);
  BOOST_TEST(std::abs(schedule.at(30, 50) - 0.6) < tiny);
  BOOST_TEST(std::abs(schedule.at(49, 50) - 0.22) < tiny);
}

BOOST_AUTO_TEST_CASE(cosine_is_half_a_cosine_to_min_lr) {
  const Schedule schedule{.kind = Kind::cosine, .lr = 1, .min_lr = 0.2};
  BOOST_TEST(schedule.at(0, 90) == 1.0);
  BOOST_TEST(std::abs(schedule.at(30, 90) - 0.8) < tiny);  // cos 60 degrees = 1/2
  BOOST_TEST(std::abs(schedule.at(45, 90) - 0.6) < tiny);
  BOOST_TEST(std::abs(schedule.at(60, 90) - 0.4) < tiny);
}

BOOST_AUTO_TEST_CASE(past_the_end_min_lr_stays) {
  for (const Kind kind : {Kind::cosine, Kind::linear}) {
    const Schedule schedule{.kind = kind, .lr = 1, .min_lr = 0.125};
    BOOST_TEST(schedule.at(64, 64) == 0.125);
    BOOST_TEST(schedule.at(1000, 64) == 0.125);
  }
}

BOOST_AUTO_TEST_CASE(a_run_shorter_than_its_warm_up_only_warms_up) {
  const Schedule schedule{.kind = Kind::cosine, .lr = 1, .warmup_steps = 10};
  BOOST_TEST(schedule.at(4, 5) == 0.5);
  BOOST_TEST(schedule.at(9, 10) == 1.0);
}

BOOST_AUTO_TEST_CASE(bad_settings_are_errors) {
  BOOST_CHECK_THROW((Schedule{.lr = -1}.at(0, 10)), UsageError);
  BOOST_CHECK_THROW((Schedule{.lr = INFINITY}.at(0, 10)), UsageError);
  BOOST_CHECK_THROW((Schedule{.lr = 0.1, .min_lr = 0.2}.at(0, 10)), UsageError);
  BOOST_CHECK_THROW((Schedule{.warmup_steps = -1}.at(0, 10)), UsageError);
  BOOST_CHECK_THROW((Schedule{}.at(-1, 10)), UsageError);
  BOOST_CHECK_THROW(schedule_named("cosin"), UsageError);
}

BOOST_AUTO_TEST_CASE(names_are_those_of_the_configuration) {
  BOOST_CHECK(schedule_named("constant") == Kind::constant);
  BOOST_CHECK(schedule_named("cosine") == Kind::cosine);
  BOOST_CHECK(schedule_named("linear") == Kind::linear);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
