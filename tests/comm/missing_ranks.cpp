// A barrier with a time limit names the ranks that did not come.
#include <mpi.h>

#include <boost/test/unit_test.hpp>
#include <string>

#include "lockstep/base/error.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(missing_ranks, *ranks(1, 2, 3, 4))

constexpr double short_s = 0.05;

/// The text of the error that a barrier throws, or "passed".
std::string outcome(comm::HostGroup& group, double timeout_s) {
  try {
    group.barrier(timeout_s);
    return "passed";
  } catch (const FailureError& error) {
    return error.what();
  }
}

/// Whether the text names the rank, as the only one if `alone`.
bool names(const std::string& text, int rank, bool alone) {
  const std::string name = std::to_string(rank) + " (";
  return text.find(alone ? "barrier: rank " + name : name) != std::string::npos;
}

BOOST_AUTO_TEST_CASE(every_rank_that_came_names_the_one_that_did_not) {
  for (const int missing : {0, world().size() - 1}) {
    const auto ranks = world().split(0, world().rank());
    if (world().rank() != missing) {
      const std::string text = outcome(*ranks, short_s);
      BOOST_TEST(names(text, missing, true), text);
    }
    world().barrier();                                       // all have given up
    if (world().rank() == missing) ranks->barrier(short_s);  // opens the barrier that the others began
    world().barrier();
  }
}

BOOST_AUTO_TEST_CASE(all_that_are_missing_are_named) {
  const auto ranks = world().split(0, world().rank());
  if (world().rank() == 0 && world().size() > 1) {
    const std::string text = outcome(*ranks, short_s);
    for (int missing = 1; missing < world().size(); ++missing)
      BOOST_TEST(names(text, missing, world().size() == 2), text);
    BOOST_TEST(!names(text, 0, false), text);
  }
  world().barrier();
  if (world().rank() != 0) ranks->barrier(60);
}

BOOST_AUTO_TEST_CASE(a_rank_that_waits_without_a_limit_is_not_missing) {
  if (world().size() < 3) return;
  const auto ranks = world().split(0, world().rank());
  const int missing = world().size() - 1;
  if (world().rank() == 0) {
    const std::string text = outcome(*ranks, short_s);
    BOOST_TEST(names(text, missing, true), text);
    MPI_Send(nullptr, 0, MPI_BYTE, missing, 0, MPI_COMM_WORLD);
  } else {
    if (world().rank() == missing) MPI_Recv(nullptr, 0, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    BOOST_TEST(outcome(*ranks, 0) == "passed");
  }
}

BOOST_AUTO_TEST_CASE(a_time_limit_that_is_kept_has_no_effect) {
  for (int round = 0; round < 20; ++round) BOOST_TEST_REQUIRE(outcome(world(), 60) == "passed");
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
