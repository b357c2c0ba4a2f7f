// What signals do during a run and after it.
#include "lockstep/train/stop.h"

#include <boost/test/unit_test.hpp>
#include <csignal>

#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

volatile std::sig_atomic_t heard = 0;

struct Signals {
  Signals() {
    heard = 0;
    for (const int signal : {SIGINT, SIGTERM, SIGUSR2}) std::signal(signal, [](int) { heard = heard + 1; });
  }
  ~Signals() {
    for (const int signal : {SIGINT, SIGTERM, SIGUSR2}) std::signal(signal, SIG_DFL);
  }
  TemporaryFolder folder;
};

BOOST_FIXTURE_TEST_SUITE(stop, Signals)

BOOST_AUTO_TEST_CASE(signals_are_requests_while_a_run_lives) {
  const train::StopRequests requests(folder.path(), true);
  BOOST_TEST(!requests.pending().preempt);
  std::raise(SIGUSR2);
  BOOST_TEST(requests.pending().preempt);
  BOOST_TEST(!requests.pending().user_stop);
  std::raise(SIGINT);
  BOOST_TEST(requests.pending().user_stop);
  BOOST_TEST(heard == 0);
}

BOOST_AUTO_TEST_CASE(after_a_run_signals_do_what_they_did_before) {
  { const train::StopRequests requests(folder.path(), true); }
  for (const int signal : {SIGINT, SIGTERM, SIGUSR2}) std::raise(signal);
  BOOST_TEST(heard == 3);
}

// Of a rank that no signal has reached, too: the others told it to stop.
BOOST_AUTO_TEST_CASE(after_a_preemption_was_obeyed_its_signals_end_nothing) {
  {
    train::StopRequests requests(folder.path(), false);
    requests.clear({.preempt = true});
  }
  std::raise(SIGUSR2);
  std::raise(SIGTERM);
  BOOST_TEST(heard == 0);
  std::raise(SIGINT);
  BOOST_TEST(heard == 1);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
