// Threads of a rank, from the cores that it may use: on machines that this one need not be.
#include "lockstep/train/threads.h"

#include <boost/test/unit_test.hpp>

namespace lockstep::test {
namespace {

using train::RankCores;

comm::Topology machines(const std::vector<int>& node_of_rank) {
  comm::Topology topology;
  for (const int node : node_of_rank) {
    if (node == topology.nodes()) topology.host_names.push_back("node" + std::to_string(node));
    topology.local_rank_of_rank.push_back(topology.ranks_on_node(node));
    topology.node_of_rank.push_back(node);
  }
  return topology;
}

/// Of a machine whose core c has the hardware threads c and c + half.
RankCores on(const std::string& hardware_threads, int of_machine, bool hyperthreads = false, int node = 0) {
  RankCores rank{.node = node,
                 .hardware_threads = cores_in(hardware_threads),
                 .cores = {},
                 .of_machine = of_machine,
                 .quota_cores = 0};
  for (const int thread : rank.hardware_threads)
    rank.cores.insert(hyperthreads ? thread % (of_machine / 2) : thread);
  return rank;
}

int threads_of(const std::vector<RankCores>& ranks) {
  std::vector<int> nodes;
  for (const RankCores& rank : ranks) nodes.push_back(rank.node);
  return train::choose_threads(ranks, machines(nodes)).threads;
}

BOOST_AUTO_TEST_CASE(ranks_that_may_go_anywhere_share_the_cores_of_their_machine) {
  BOOST_TEST(threads_of({on("0-15", 16)}) == 16);
  BOOST_TEST(threads_of({on("0-15", 16), on("0-15", 16)}) == 8);
  BOOST_TEST(threads_of({on("0-15", 16), on("0-15", 16), on("0-15", 16)}) == 5);
}

BOOST_AUTO_TEST_CASE(a_rank_bound_to_its_own_cores_has_a_thread_for_each) {
  BOOST_TEST(threads_of({on("0", 16), on("1", 16)}) == 1);
  BOOST_TEST(threads_of({on("0-3", 16), on("4-7", 16)}) == 4);  // srun --cpus-per-task=4
  BOOST_TEST(threads_of({on("0-3", 16), on("4-5", 16)}) == 2);  // one number for all: bits depend on it
}

BOOST_AUTO_TEST_CASE(hardware_threads_of_a_core_count_once) {
  BOOST_TEST(threads_of({on("0-15", 16, true)}) == 8);
  BOOST_TEST(threads_of({on("0-3,8-11", 16, true), on("4-7,12-15", 16, true)}) == 4);
  BOOST_TEST(threads_of({on("0", 16, true), on("8", 16, true)}) == 1);  // two ranks of one core
  BOOST_TEST(train::choose_threads(std::vector{on("0-15", 16, true)}, machines({0})).reason ==
             "node0: 1 rank on 8 cores (16 hardware threads)");
}

BOOST_AUTO_TEST_CASE(more_ranks_than_cores_get_a_thread_each) {
  const std::vector<RankCores> ranks(3, on("0-1", 2));
  const train::ThreadChoice choice = train::choose_threads(ranks, machines({0, 0, 0}));
  BOOST_TEST(choice.threads == 1);
  BOOST_TEST(choice.reason == "node0: 3 ranks on 2 cores");
}

BOOST_AUTO_TEST_CASE(a_containers_share_of_time_is_a_limit) {
  RankCores rank = on("0-63", 64);
  rank.quota_cores = 6.5;
  BOOST_TEST(threads_of({rank}) == 6);
  BOOST_TEST(threads_of({rank, rank}) == 3);
  rank.quota_cores = 0.5;
  BOOST_TEST(threads_of({rank}) == 1);
}

BOOST_AUTO_TEST_CASE(the_smallest_machine_decides_for_all) {
  BOOST_TEST(threads_of({on("0-15", 16), on("0-7", 8, false, 1), on("0-7", 8, false, 1)}) == 4);
}

BOOST_AUTO_TEST_CASE(partly_shared_cores_are_shared_by_all_that_touch_them) {
  BOOST_TEST(threads_of({on("0-3", 8), on("2-5", 8), on("6-7", 8)}) == 2);
  BOOST_TEST(threads_of({on("0-3", 8), on("4-7", 8), on("3-4", 8)}) == 2);  // the last joins the others
}

BOOST_AUTO_TEST_CASE(no_rank_gets_more_threads_than_it_has_cores) {
  BOOST_TEST(threads_of({on("0", 8), on("0-7", 8)}) == 1);
  BOOST_TEST(threads_of({on("0-1", 8), on("0-7", 8)}) == 2);
}

BOOST_AUTO_TEST_CASE(crowding_says_who_takes_turns_where) {
  const auto text = [](const std::vector<RankCores>& ranks, int threads) {
    const auto crowd = train::crowding(ranks, machines(std::vector<int>(ranks.size(), 0)), 0, threads);
    return crowd ? (crowd->bound_away ? "bound: " : "full: ") + crowd->text : "";
  };
  BOOST_TEST(text({on("0-1", 2), on("0-1", 2)}, 1) == "");
  BOOST_TEST(text({on("0-1", 2), on("0-1", 2), on("0-1", 2)}, 1) ==
             "full: node0: 3 ranks with a thread each on 2 cores: they take turns");
  BOOST_TEST(text({on("0", 4), on("1", 4)}, 2) ==
             "bound: node0: rank 0, with 2 threads each, is bound to core 0");
  BOOST_TEST(text({on("3", 4), on("3", 4)}, 1) ==
             "bound: node0: ranks 0, 1 are bound to the same core 3, with a thread each");
  BOOST_TEST(text({on("0-1", 4), on("2-3", 4)}, 2) == "");
}

BOOST_AUTO_TEST_CASE(core_sets_are_written_as_the_kernel_writes_them) {
  for (const std::string text : {"", "0", "0-3", "0-3,8", "1,3,5-6"})
    BOOST_TEST(to_text(cores_in(text)) == text);
  BOOST_TEST((cores_in("x,2-,4-5,") == CoreSet{2, 4, 5}));
  BOOST_TEST(!own_cores().empty());
  BOOST_TEST(!physical_cores(own_cores()).empty());
}

}  // namespace
}  // namespace lockstep::test
