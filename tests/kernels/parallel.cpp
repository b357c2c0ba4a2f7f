// Loops over threads.
#include "kernels/cpu/parallel.h"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <set>
#include <vector>

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(parallel)

constexpr int threads = 4;

/// The system's numbers of the threads that a loop of `count` items ran on.
std::set<pid_t> ran_on(std::int64_t count) {
  std::vector<pid_t> of_item(static_cast<std::size_t>(count));
  kernels::parallel_items(threads, count, 1,
                          [&](std::int64_t item) { of_item[static_cast<std::size_t>(item)] = gettid(); });
  return {of_item.begin(), of_item.end()};
}

BOOST_AUTO_TEST_CASE(a_short_loop_ends_no_thread_of_a_long_one) {
  const std::set<pid_t> before = ran_on(threads);
  BOOST_TEST(before.size() == std::size_t{threads});
  BOOST_TEST(ran_on(2).size() == 2u);
  BOOST_TEST((ran_on(threads) == before));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
