// Helpers and the cores of their creator, which is bound by others or by this process.
#include "base/cores.h"

#include <sched.h>

#include <boost/test/unit_test.hpp>

#include "base/thread.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(cores)

CoreSet of_a_helper() {
  CoreSet cores;
  start_background_thread("a test", [&] { cores = own_cores(); }).join();
  return cores;
}

/// As taskset does, or a program around this one.
bool bind_from_outside(int core) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(static_cast<std::size_t>(core), &mask);
  return sched_setaffinity(0, sizeof mask, &mask) == 0;
}

BOOST_AUTO_TEST_CASE(a_helper_leaves_the_cores_of_its_creator_only_where_this_process_has_bound_threads) {
  const CoreSet given = process_cores(), first{*given.begin()};
  BOOST_TEST(!threads_bound());
  if (!bind_from_outside(*given.begin())) return;  // a sandbox
  BOOST_TEST((of_a_helper() == first));
  BOOST_TEST(bind_thread(first));
  BOOST_TEST(threads_bound());
  BOOST_TEST((of_a_helper() == given));
  BOOST_TEST((own_cores() == first));
}

BOOST_AUTO_TEST_CASE(no_cores_and_cores_that_are_not_there_are_refused) {
  BOOST_TEST(!bind_thread({}));
  BOOST_TEST(!bind_thread({20000}));  // past what fits into a cpu_set_t
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
