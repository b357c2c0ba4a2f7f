// Work next to the thread that trains: its end, its failure, and what of it counts as progress.
#include "checkpoint/save.h"

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <stdexcept>
#include <thread>

#include "base/progress.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(worker_thread)

namespace lc = checkpoint;

BOOST_AUTO_TEST_CASE(work_runs_while_the_starter_goes_on) {
  lc::WorkerThread worker;
  BOOST_TEST(!worker.running());
  std::atomic<bool> go{false};
  worker.start([&] {
    while (!go) std::this_thread::yield();
  });
  BOOST_TEST(worker.running());
  go = true;
  worker.finish();
  BOOST_TEST(!worker.running());
  BOOST_TEST(!worker.failed());
}

BOOST_AUTO_TEST_CASE(what_the_work_throws_is_seen_and_thrown_once) {
  lc::WorkerThread worker;
  worker.start([] { throw std::runtime_error("no paper"); });
  while (worker.running()) std::this_thread::yield();
  BOOST_TEST(worker.failed());
  BOOST_CHECK_THROW(worker.finish(), std::runtime_error);
  BOOST_TEST(!worker.failed());
  worker.finish();
  worker.start([] {});
  worker.finish();
}

BOOST_AUTO_TEST_CASE(its_progress_counts_as_that_of_training_only_while_that_waits_for_it) {
  lc::WorkerThread worker;
  const std::int64_t before = progress::status().ticks;
  std::atomic<bool> marked{false};
  worker.start([&] {
    progress::tick();
    marked = true;
    while (progress::status().ticks == before) progress::tick();  // until somebody waits
  });
  while (!marked) std::this_thread::yield();
  BOOST_TEST(progress::status().ticks == before);
  worker.finish();
  BOOST_TEST(progress::status().ticks > before);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
