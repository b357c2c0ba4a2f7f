// What ends a background thread and wakes it.
#include "base/thread.h"

#include <boost/test/unit_test.hpp>
#include <csignal>

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(thread)

constexpr double hours_s = 1e5;

BOOST_AUTO_TEST_CASE(a_stop_ends_every_sleep_before_and_after_it) {
  StopEvent stop;
  std::thread sleeper = start_background_thread("a test", [&] { BOOST_TEST(stop.wait_for(hours_s)); });
  stop.set();
  sleeper.join();
  BOOST_TEST(stop.wait_for(hours_s));
  BOOST_TEST(stop.wait_for(hours_s));
}

BOOST_AUTO_TEST_CASE(a_wake_ends_one_sleep_and_is_no_stop) {
  StopEvent stop;
  stop.wake();
  stop.wake();
  BOOST_TEST(!stop.wait_for(hours_s));
  BOOST_TEST(!stop.wait_for(0));
  stop.set();
  BOOST_TEST(stop.wait_for(hours_s));
}

BOOST_AUTO_TEST_CASE(a_signal_handler_may_wake_a_thread) {
  static StopEvent stop;
  std::signal(SIGUSR1, [](int) { stop.wake(); });
  std::thread sleeper = start_background_thread("a test", [&] { BOOST_TEST(!stop.wait_for(hours_s)); });
  std::raise(SIGUSR1);
  sleeper.join();
  std::signal(SIGUSR1, SIG_DFL);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
