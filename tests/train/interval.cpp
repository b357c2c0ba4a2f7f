// What a line of metrics says of its steps: means, by rank up to a bound.
#include "train/run/interval.h"

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "lockstep/train/metrics.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(interval)

using train::Interval;

ddp::StepResult step_of(double exposed_comm_ms) {
  ddp::StepResult result;
  result.exposed_comm_ms = exposed_comm_ms;
  return result;
}

/// Steps whose ranks compute for base_ms and 1 ms more for each rank before them.
nlohmann::json line_of(int ranks, std::initializer_list<double> base_ms) {
  Interval interval(ranks);
  for (const double ms : base_ms) interval.add(step_of(2 * ms), 4 * ms, [&](int rank) { return ms + rank; });
  return interval.to_json();
}

BOOST_AUTO_TEST_CASE(a_line_has_means_over_its_steps) {
  const nlohmann::json line = line_of(2, {1, 2});
  BOOST_TEST(line.at("exposed_comm_ms") == 3);
  BOOST_TEST(line.at("data_wait_ms") == 6);
  BOOST_TEST(line.at("rank_compute_ms").dump() == "[1.5,2.5]");
  BOOST_TEST(line.at("step_ms") >= 0.0);
}

BOOST_AUTO_TEST_CASE(a_restart_forgets_the_steps_before) {
  Interval interval(1);
  interval.add(step_of(100), 100, [](int) { return 100.0; });
  interval.restart();
  BOOST_TEST(interval.steps() == 0);
  interval.add(step_of(1), 2, [](int) { return 3.0; });
  const nlohmann::json line = interval.to_json();
  BOOST_TEST(line.at("exposed_comm_ms") == 1);
  BOOST_TEST(line.at("data_wait_ms") == 2);
  BOOST_TEST(line.at("rank_compute_ms").dump() == "[3.0]");
}

BOOST_AUTO_TEST_CASE(a_line_of_more_ranks_than_are_listed_has_three_figures_and_the_slowest_rank) {
  BOOST_TEST(line_of(64, {0.5}).at("rank_compute_ms").size() == 64U);
  const nlohmann::json line = line_of(1000, {0.5});
  BOOST_TEST(line.at("rank_compute_ms").dump() == R"({"max":999.5,"median":500.5,"min":0.5})");
  BOOST_TEST(line.at("slowest_rank") == 999);
  BOOST_TEST(!line_of(64, {0.5}).contains("slowest_rank"));
  BOOST_TEST(line_of(100'000, {0.5}).dump().size() < 200U);
}

BOOST_AUTO_TEST_CASE(a_rank_that_writes_nothing_keeps_no_times_of_others) {
  BOOST_TEST(!line_of(0, {1}).contains("rank_compute_ms"));
}

BOOST_AUTO_TEST_CASE(the_pace_is_that_of_recent_steps) {
  train::Pace pace(100, 20);  // a run that resumes at step 100
  BOOST_TEST(pace.step_s() == 0);
  pace.at(100, 5);
  BOOST_TEST(pace.step_s() == 0);
  double seconds = 0;
  const auto step = [&](int done, double step_s) { pace.at(done, seconds += step_s); };
  for (int done = 101; done <= 120; ++done) step(done, 10);  // a slow start
  BOOST_TEST(pace.step_s() == 10);
  step(121, 1);
  BOOST_TEST(pace.step_s() == 201.0 / 21);
  for (int done = 122; done <= 139; ++done) step(done, 1);
  BOOST_TEST(pace.step_s() == 219.0 / 39);
  for (int done = 140; done <= 300; ++done) {
    step(done, 1);
    BOOST_TEST(pace.step_s() == 1);  // the start is forgotten
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
