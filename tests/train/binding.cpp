// Threads of real ranks on the cores of this node, enough or not.
#include "train/threads.h"

#include <omp.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <vector>

#include "base/thread.h"
#include "support/environment.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(binding, *ranks(1, 2, 3, 4))

/// Where each OpenMP thread of this one may run.
std::vector<CoreSet> masks(int threads) {
  std::vector<CoreSet> of_thread(static_cast<std::size_t>(threads));
#pragma omp parallel num_threads(threads)
  of_thread[static_cast<std::size_t>(omp_get_thread_num())] = own_cores();
  return of_thread;
}

/// Some sandboxes refuse. Said where it is so: nothing is tested then.
bool system_binds() {
  const bool binds = bind_thread(process_cores());
  if (!binds) BOOST_TEST_MESSAGE("the system refuses to bind threads: nothing to test");
  return binds;
}

bool within(const CoreSet& part, const CoreSet& all) { return std::ranges::includes(all, part); }

BOOST_AUTO_TEST_CASE(threads_have_cores_of_their_own_where_there_are_enough_and_all_where_not) {
  if (!system_binds()) return;
  const int rank = world().rank();
  const std::vector<train::RankCores> ranks = train::cores_of_ranks(world());
  for (const int threads : {1, 2, 3, 1}) {
    train::bind_threads(world(), Log(rank), threads);
    const std::vector<CoreSet> of_thread = masks(threads);
    const bool shares = !train::cores_of_threads(ranks, rank, threads).empty();
    CoreSet seen;
    for (std::size_t thread = 1; thread < of_thread.size(); ++thread) {
      if (!shares) BOOST_TEST((of_thread[thread] == process_cores()));
      BOOST_TEST(within(of_thread[thread], of_thread[0]));
      for (const int core : of_thread[thread]) BOOST_TEST((seen.insert(core).second || !shares));
    }
    // Every rank's first thread has all of its rank's cores.
    const std::vector<std::string> firsts = world().all_gather_texts(to_text(of_thread[0]));
    CoreSet taken;
    for (std::size_t other = 0; other < firsts.size(); ++other) {
      const CoreSet cores = cores_in(firsts[other]);
      BOOST_TEST(within(cores, ranks[other].hardware_threads));
      if (train::cores_of_threads(ranks, static_cast<int>(other), threads).empty()) continue;
      for (const int core : cores) BOOST_TEST(taken.insert(core).second);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_background_thread_of_a_bound_one_may_use_all_cores_of_the_process) {
  if (!system_binds()) return;
  train::bind_threads(world(), Log(world().rank()), 1);
  CoreSet background;
  start_background_thread("a test", [&] { background = own_cores(); }).join();
  BOOST_TEST((background == process_cores()));
}

BOOST_AUTO_TEST_CASE(one_rank_that_does_not_want_to_be_bound_decides_for_all) {
  BOOST_TEST(train::binding_wanted(world(), "cores"));
  BOOST_TEST(!train::binding_wanted(world(), "none"));
  const bool last = world().rank() == world().size() - 1;
  Environment environment;
  environment.set("LOCKSTEP_BIND", last ? "none" : "cores");
  BOOST_TEST(!train::binding_wanted(world(), "cores"));
  environment.set("LOCKSTEP_BIND", "cores");
  BOOST_TEST(train::binding_wanted(world(), "cores"));
}

BOOST_AUTO_TEST_CASE(a_bound_rank_still_knows_what_it_was_given) {
  const std::vector<train::RankCores> before = train::cores_of_ranks(world());
  train::bind_threads(world(), Log(world().rank()), 1);
  const std::vector<train::RankCores> after = train::cores_of_ranks(world());
  for (std::size_t rank = 0; rank < before.size(); ++rank)
    BOOST_TEST((after[rank].by_core == before[rank].by_core));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
