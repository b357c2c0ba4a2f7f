// Which checkpoints of a run stay: the newest, and the best by a metric.
#include "checkpoint/run_files.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <optional>

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(retention)

namespace lc = checkpoint;

using Steps = std::vector<std::int64_t>;

BOOST_AUTO_TEST_CASE(the_newest_stay_and_later_steps_of_another_course_do_not_count) {
  const Steps steps{900, 500, 400, 300, 200};
  BOOST_TEST(lc::Retention(2, "").to_remove(steps, 500) == (Steps{300, 200}),
             boost::test_tools::per_element());
  BOOST_TEST(lc::Retention(1, "").to_remove(steps, 500) == (Steps{400, 300, 200}),
             boost::test_tools::per_element());
  BOOST_TEST(lc::Retention(0, "").to_remove(steps, 500).empty());
  BOOST_TEST(!lc::Retention(2, "").best(steps));
}

BOOST_AUTO_TEST_CASE(the_best_stays_as_long_as_it_is_the_best) {
  lc::Retention loss(1, "eval_loss"), accuracy(1, "eval_ema_0.99_accuracy", true);
  for (lc::Retention* const retention : {&loss, &accuracy}) {
    retention->note(100, 0.5);
    retention->note(200, 0.75);
    retention->note(300, 0.625);
  }
  const Steps steps{300, 200, 100}, more{400, 300, 200, 100};
  BOOST_TEST(loss.best(steps).value() == 100);
  BOOST_TEST(accuracy.best(steps).value() == 200);
  BOOST_TEST(accuracy.best(Steps{300, 100}).value() == 300);  // what is gone is not the best
  BOOST_TEST(loss.to_remove(steps, 300) == Steps{200}, boost::test_tools::per_element());
  BOOST_TEST(accuracy.to_remove(steps, 300) == Steps{100}, boost::test_tools::per_element());
  accuracy.note(400, 0.75);  // of equals the earlier
  BOOST_TEST(accuracy.best(more).value() == 200);
  accuracy.note(400, 0.7500001);
  BOOST_TEST(accuracy.best(more).value() == 400);
}

BOOST_AUTO_TEST_CASE(a_checkpoint_without_a_metric_is_never_the_best_and_one_saved_again_is_judged_again) {
  lc::Retention loss(2, "eval_loss");
  const Steps steps{200, 100};
  for (const auto none :
       {std::optional<double>(), std::optional<double>(NAN), std::optional<double>(INFINITY)}) {
    loss.note(100, none);
    BOOST_TEST(!loss.best(steps));
  }
  loss.note(100, 1e-3);
  loss.note(200, 2e-3);
  loss.note(100, {});
  BOOST_TEST(loss.best(steps).value() == 200);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
