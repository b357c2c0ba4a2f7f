// Learning-rate schedules against values worked out by hand.
#include "lockstep/optim/schedule.h"

#include <boost/test/unit_test.hpp>
#include <cmath>

#include "lockstep/base/error.h"
#include "support/mentions.h"

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
  for (const Kind kind : {Kind::constant, Kind::cosine, Kind::linear, Kind::poly}) {
    const Schedule schedule{.kind = kind, .lr = 0.8, .warmup_steps = 4};
    for (int step = 0; step < 4; ++step)
      BOOST_TEST(std::abs(schedule.at(step, 100) - 0.2 * (step + 1)) < tiny);
    BOOST_TEST(schedule.at(4, 100) == 0.8);
  }
}

BOOST_AUTO_TEST_CASE(warm_up_may_begin_above_0) {
  const Schedule schedule{.lr = 0.8, .warmup_steps = 4, .warmup_lr = 0.4};
  for (int step = 0; step < 4; ++step)
    BOOST_TEST(std::abs(schedule.at(step, 100) - (0.4 + 0.1 * (step + 1))) < tiny);
  BOOST_TEST(schedule.at(4, 100) == 0.8);
  BOOST_CHECK_THROW((Schedule{.warmup_steps = 2, .warmup_lr = -1}.at(0, 10)), UsageError);
  BOOST_CHECK_EXCEPTION(option::check(Schedule{.warmup_lr = 0.1}, "optimizer."), UsageError,
                        mentions("optimizer.warmup_lr: needs optimizer.warmup_steps"));
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
  for (const Kind kind : {Kind::cosine, Kind::linear, Kind::poly}) {
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
  BOOST_CHECK_THROW(option::named<Kind>("cosin"), UsageError);
}

BOOST_AUTO_TEST_CASE(names_are_those_of_the_configuration) {
  BOOST_CHECK(option::named<Kind>("constant") == Kind::constant);
  BOOST_CHECK(option::named<Kind>("cosine") == Kind::cosine);
  BOOST_CHECK(option::named<Kind>("linear") == Kind::linear);
  BOOST_CHECK(option::named<Kind>("wsd") == Kind::wsd);
  BOOST_CHECK(option::named<Kind>("step") == Kind::step);
  BOOST_CHECK(option::named<Kind>("poly") == Kind::poly);
}

BOOST_AUTO_TEST_CASE(wsd_stays_and_falls_to_its_floor_in_the_last_steps) {
  const Schedule schedule{.kind = Kind::wsd, .lr = 1, .min_lr = 0.2, .warmup_steps = 10, .decay_steps = 40};
  for (const int step : {10, 59, 60}) BOOST_TEST(schedule.at(step, 100) == 1.0);
  BOOST_TEST(std::abs(schedule.at(70, 100) - 0.8) < tiny);
  BOOST_TEST(std::abs(schedule.at(99, 100) - 0.22) < tiny);
  for (const int step : {100, 5000}) BOOST_TEST(schedule.at(step, 100) == 0.2);
  const Schedule all_of_it{.kind = Kind::wsd, .lr = 1, .decay_steps = 4};
  BOOST_TEST(all_of_it.at(0, 4) == 1.0);
}

BOOST_AUTO_TEST_CASE(step_multiplies_at_each_milestone) {
  const Schedule schedule{
      .kind = Kind::step, .lr = 0.8, .warmup_steps = 4, .milestones = {2, 10, 20}, .gamma = 0.5};
  BOOST_TEST(schedule.at(3, 30) == 0.8);  // the end of the warm-up, whatever is in it
  BOOST_TEST(schedule.at(4, 30) == 0.4);
  BOOST_TEST(schedule.at(9, 30) == 0.4);
  BOOST_TEST(schedule.at(10, 30) == 0.2);
  BOOST_TEST(schedule.at(20, 30) == 0.1);
  BOOST_TEST(schedule.at(5000, 30) == 0.1);
}

BOOST_AUTO_TEST_CASE(poly_is_a_power_of_what_is_left) {
  const Schedule schedule{.kind = Kind::poly, .lr = 1, .min_lr = 0.2, .warmup_steps = 10, .power = 2};
  BOOST_TEST(schedule.at(10, 50) == 1.0);
  BOOST_TEST(std::abs(schedule.at(30, 50) - 0.4) < tiny);
  for (const int step : {50, 5000}) BOOST_TEST(schedule.at(step, 50) == 0.2);
  const Schedule straight{.kind = Kind::linear, .lr = 0.3, .min_lr = 0.1, .warmup_steps = 3},
      first_power{.kind = Kind::poly, .lr = 0.3, .min_lr = 0.1, .warmup_steps = 3};
  for (int step = 0; step < 20; ++step) BOOST_TEST(first_power.at(step, 17) == straight.at(step, 17));
}

BOOST_AUTO_TEST_CASE(what_a_kind_cannot_do_is_refused) {
  for (const int decay_steps : {-1, 0, 11})
    BOOST_CHECK_THROW((Schedule{.kind = Kind::wsd, .decay_steps = decay_steps}.at(0, 10)), UsageError);
  BOOST_CHECK_THROW((Schedule{.kind = Kind::step, .milestones = {3, 3}}.at(0, 10)), UsageError);
  BOOST_CHECK_THROW((Schedule{.kind = Kind::step, .milestones = {3, 2}}.at(0, 10)), UsageError);
  for (const double bad : {0.0, -1.0, double{NAN}, double{INFINITY}}) {
    BOOST_CHECK_THROW((Schedule{.kind = Kind::step, .milestones = {3}, .gamma = bad}.at(0, 10)), UsageError);
    BOOST_CHECK_THROW((Schedule{.kind = Kind::poly, .power = bad}.at(0, 10)), UsageError);
  }
}

BOOST_AUTO_TEST_CASE(keys_of_a_configuration_are_its_members) {
  Schedule schedule;
  const auto set = [&](const std::string& name, const std::string& value) {
    for (const Option<Schedule>& row : Schedule::options())
      if (row.name == name) row.set(schedule, value);
  };
  set("schedule", "step");
  set("lr", "0.5");
  set("warmup_steps", "2");
  set("milestones", "3 7");
  set("gamma", "0.25");
  BOOST_CHECK(schedule.kind == Kind::step);
  BOOST_CHECK_NO_THROW(option::check(schedule, "optimizer."));
  BOOST_TEST(schedule.at(0, 9) == 0.25);
  BOOST_TEST(schedule.at(8, 9) == 0.5 * 0.25 * 0.25);
  schedule.power = 2;
  BOOST_CHECK_EXCEPTION(option::check(schedule, "optimizer."), UsageError,
                        mentions("optimizer.power: is a key of optimizer.schedule = poly"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
