// The benchmark of all-reduce measures what it says: each size, both ways, checked.
#include "comm/benchmark.h"

#include <boost/test/unit_test.hpp>

#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(benchmark, *ranks(1, 2, 3, 4))

void check(comm::CpuCommunicator& communicator, bool with_mpi) {
  const std::vector<std::size_t> sizes = {4, 4100, 65536};
  const auto times = comm::time_all_reduce(communicator, sizes);
  BOOST_REQUIRE_EQUAL(times.size(), sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    BOOST_TEST(times[i].bytes == sizes[i]);
    BOOST_TEST(times[i].ranks == communicator.size());
    BOOST_TEST(times[i].exact);
    BOOST_TEST(times[i].lockstep_ms > 0);
    BOOST_TEST((times[i].mpi_ms > 0) == with_mpi);
  }
}

BOOST_AUTO_TEST_CASE(every_size_is_summed_both_ways_and_is_exact) { check(world(), true); }

BOOST_AUTO_TEST_CASE(the_parts_of_a_split_may_measure_at_the_same_time) {
  check(*world().split(world().rank() % 2, 0), true);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
