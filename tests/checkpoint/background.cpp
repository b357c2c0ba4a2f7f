// Work beside the thread that trains: its end, its failure, and what of it counts as progress.
#include "checkpoint/background.h"

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <stdexcept>
#include <thread>

#include "lockstep/base/whereabouts.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(background)

namespace lc = checkpoint;

BOOST_AUTO_TEST_CASE(work_runs_while_the_starter_goes_on) {
  lc::Background background;
  BOOST_TEST(!background.running());
  std::atomic<bool> go{false};
  background.start([&] {
    while (!go) std::this_thread::yield();
  });
  BOOST_TEST(background.running());
  go = true;
  background.finish();
  BOOST_TEST(!background.running());
  BOOST_TEST(!background.failed());
}

BOOST_AUTO_TEST_CASE(what_the_work_throws_is_seen_and_thrown_once) {
  lc::Background background;
  background.start([] { throw std::runtime_error("no paper"); });
  while (background.running()) std::this_thread::yield();
  BOOST_TEST(background.failed());
  BOOST_CHECK_THROW(background.finish(), std::runtime_error);
  BOOST_TEST(!background.failed());
  background.finish();
  background.start([] {});
  background.finish();
}

BOOST_AUTO_TEST_CASE(its_progress_counts_as_that_of_training_only_while_that_waits_for_it) {
  lc::Background background;
  const std::uint64_t before = whereabouts::here().marks;
  std::atomic<bool> marked{false};
  background.start([&] {
    whereabouts::mark();
    marked = true;
    while (whereabouts::here().marks == before) whereabouts::mark();  // until somebody waits
  });
  while (!marked) std::this_thread::yield();
  BOOST_TEST(whereabouts::here().marks == before);
  background.finish();
  BOOST_TEST(whereabouts::here().marks > before);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
