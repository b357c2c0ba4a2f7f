// Threads of a rank and their binding, from the cores that it may use, on made-up nodes.
#include "train/threads.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <iterator>

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(threads)

using train::RankCores;

comm::Topology nodes(const std::vector<int>& node_of_rank) {
  comm::Topology topology;
  for (const int node : node_of_rank) {
    if (node == topology.nodes()) topology.host_names.push_back("node" + std::to_string(node));
    topology.local_rank_of_rank.push_back(topology.ranks_on_node(node));
    topology.node_of_rank.push_back(node);
  }
  return topology;
}

/// On a node whose core c has the hardware threads c and c + half.
RankCores on(const std::string& hardware_threads, int node_hardware_threads, bool hyperthreads = false,
             int node = 0) {
  RankCores rank{.node = node,
                 .hardware_threads = cores_in(hardware_threads),
                 .cores = {},
                 .node_hardware_threads = node_hardware_threads,
                 .cgroup_cores = 0};
  for (const int thread : rank.hardware_threads)
    rank.cores.insert(hyperthreads ? thread % (node_hardware_threads / 2) : thread);
  for (const int core : rank.cores) {
    const CoreSet both{core, hyperthreads ? core + node_hardware_threads / 2 : core};
    CoreSet& given = rank.by_core.emplace_back();
    std::ranges::set_intersection(both, rank.hardware_threads, std::inserter(given, given.end()));
  }
  return rank;
}

int threads_of(const std::vector<RankCores>& ranks) {
  std::vector<int> node_of_rank;
  for (const RankCores& rank : ranks) node_of_rank.push_back(rank.node);
  return train::choose_threads(ranks, nodes(node_of_rank)).threads;
}

BOOST_AUTO_TEST_CASE(ranks_that_may_go_anywhere_share_the_cores_of_their_node) {
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
  BOOST_TEST(train::choose_threads(std::vector{on("0-15", 16, true)}, nodes({0})).reason ==
             "node0: 1 rank on 8 cores (16 hardware threads)");
}

BOOST_AUTO_TEST_CASE(more_ranks_than_cores_get_a_thread_each) {
  const std::vector<RankCores> ranks(3, on("0-1", 2));
  const train::ThreadChoice choice = train::choose_threads(ranks, nodes({0, 0, 0}));
  BOOST_TEST(choice.threads == 1);
  BOOST_TEST(choice.reason == "node0: 3 ranks on 2 cores");
}

BOOST_AUTO_TEST_CASE(the_processor_time_of_a_cgroup_is_a_limit) {
  RankCores rank = on("0-63", 64);
  rank.cgroup_cores = 6.5;
  BOOST_TEST(threads_of({rank}) == 6);
  BOOST_TEST(threads_of({rank, rank}) == 3);
  rank.cgroup_cores = 0.5;
  BOOST_TEST(threads_of({rank}) == 1);
}

BOOST_AUTO_TEST_CASE(the_smallest_node_decides_for_all) {
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

BOOST_AUTO_TEST_CASE(oversubscription_says_who_takes_turns_where) {
  const auto text = [](const std::vector<RankCores>& ranks, int threads) {
    const auto found = train::oversubscription(ranks, nodes(std::vector<int>(ranks.size(), 0)), 0, threads);
    return found ? (found->by_binding ? "bound: " : "full: ") + found->text : "";
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

/// "0-1 2-3": the hardware threads of each thread of a rank.
std::string cores_of_threads(const std::vector<RankCores>& ranks, int rank, int threads) {
  std::string text;
  for (const CoreSet& share : train::cores_of_threads(ranks, rank, threads))
    text += (text.empty() ? "" : " ") + to_text(share);
  return text;
}

BOOST_AUTO_TEST_CASE(ranks_with_the_same_cores_divide_them_among_their_threads) {
  const std::vector<RankCores> two(2, on("0-7", 8)), three(3, on("0-7", 8));
  BOOST_TEST(cores_of_threads({on("0-7", 8)}, 0, 1) == "0-7");
  BOOST_TEST(cores_of_threads(two, 0, 2) == "0-1 2-3");
  BOOST_TEST(cores_of_threads(two, 1, 2) == "4-5 6-7");
  BOOST_TEST(cores_of_threads(two, 1, 4) == "4 5 6 7");
  BOOST_TEST(cores_of_threads(three, 0, 2) == "0 1");
  BOOST_TEST(cores_of_threads(three, 2, 2) == "5 6-7");
}

BOOST_AUTO_TEST_CASE(ranks_with_cores_of_their_own_have_all_of_them) {
  const std::vector<RankCores> ranks{on("0-3", 8), on("6-7", 8), on("0-7", 8, false, 1)};
  BOOST_TEST(cores_of_threads(ranks, 0, 2) == "0-1 2-3");
  BOOST_TEST(cores_of_threads(ranks, 1, 2) == "6 7");
  BOOST_TEST(cores_of_threads(ranks, 2, 2) == "0-3 4-7");  // on another node
}

BOOST_AUTO_TEST_CASE(threads_are_bound_to_cores_and_not_to_the_hardware_threads_of_one) {
  BOOST_TEST(cores_of_threads({on("0-3,8-11", 16, true)}, 0, 2) == "0-1,8-9 2-3,10-11");
  BOOST_TEST(cores_of_threads({on("0,8", 16, true)}, 0, 2) == "");
  BOOST_TEST(cores_of_threads({on("0", 16, true), on("8", 16, true)}, 0, 1) == "");  // two ranks of one core
}

BOOST_AUTO_TEST_CASE(nothing_is_bound_where_threads_are_more_than_cores_or_cores_shared_in_part) {
  BOOST_TEST(cores_of_threads(std::vector<RankCores>(3, on("0-1", 2)), 0, 1) == "");
  BOOST_TEST(cores_of_threads(std::vector<RankCores>(2, on("0-2", 4)), 1, 2) == "");
  BOOST_TEST(cores_of_threads({on("0-3", 8), on("3-6", 8)}, 0, 1) == "");
}

BOOST_AUTO_TEST_CASE(nothing_is_bound_where_the_system_does_not_report_cores) {
  BOOST_TEST(cores_of_threads({on("", 8)}, 0, 2) == "");
  BOOST_TEST(cores_of_threads({on("", 8), on("0-3", 8)}, 1, 2) == "0-1 2-3");
  BOOST_TEST(!train::oversubscription(std::vector{on("", 8)}, nodes({0}), 0, 2).has_value());
}

BOOST_AUTO_TEST_CASE(the_cores_of_a_rank_are_of_one_socket_whatever_the_numbers_of_its_cores) {
  RankCores rank = on("0-7", 8);
  rank.by_core = {{0}, {2}, {4}, {6}, {1}, {3}, {5}, {7}};
  BOOST_TEST(cores_of_threads({rank, rank}, 0, 2) == "0,2 4,6");
  BOOST_TEST(cores_of_threads({rank, rank}, 1, 2) == "1,3 5,7");
}

BOOST_AUTO_TEST_CASE(the_first_thread_may_use_the_cores_of_its_team_and_each_other_its_own) {
  const std::vector<RankCores> two(2, on("0-7", 8, true));
  const auto masks = [&](int rank, int threads) {
    return train::affinity_masks(train::cores_of_threads(two, rank, threads), two[0].hardware_threads,
                                 threads);
  };
  BOOST_TEST((masks(0, 2) == std::vector{cores_in("0-1,4-5"), cores_in("1,5")}));
  BOOST_TEST((masks(1, 2) == std::vector{cores_in("2-3,6-7"), cores_in("3,7")}));
  BOOST_TEST((masks(1, 3) == std::vector<CoreSet>(3, cores_in("0-7"))));  // too few cores
}

BOOST_AUTO_TEST_CASE(each_node_reports_its_binding) {
  const std::vector<RankCores> ranks{on("0-3", 8), on("4-7", 8), on("0", 8, false, 1), on("0", 8, false, 1)};
  const auto said = [&](int node, int threads) {
    return train::binding_of(ranks, nodes({0, 0, 1, 1}), node, threads);
  };
  BOOST_TEST(said(0, 4).bound);
  BOOST_TEST(said(0, 4).text == "node0: threads are bound to cores, rank 0 to 0-3, rank 1 to 4-7");
  BOOST_TEST(!said(1, 1).bound);
  BOOST_TEST(said(1, 1).text ==
             "node1: threads are not bound to cores, as rank 2 has fewer cores to itself than threads");
}

BOOST_AUTO_TEST_CASE(a_binding_is_said_by_hardware_threads_and_only_where_something_is_bound) {
  const auto said = [](const std::vector<RankCores>& ranks, int threads) {
    return train::binding_of(ranks, nodes(std::vector<int>(ranks.size(), 0)), 0, threads);
  };
  const RankCores all = on("0-7", 8, true);
  BOOST_TEST(said({all}, 1).bound);
  BOOST_TEST(said({all}, 1).text == "");
  BOOST_TEST(said({on("0-3", 8), on("4-7", 8)}, 1).text == "");  // bound by the launcher
  BOOST_TEST(said({all, all}, 1).text ==
             "node0: threads are bound to cores, rank 0 to 0-1,4-5, rank 1 to 2-3,6-7");
}

BOOST_AUTO_TEST_CASE(core_sets_are_written_as_the_kernel_writes_them) {
  for (const std::string text : {"", "0", "0-3", "0-3,8", "1,3,5-6"})
    BOOST_TEST(to_text(cores_in(text)) == text);
  for (const std::string malformed : {"x", "2-", "4-5,x"}) BOOST_TEST((cores_in(malformed) == CoreSet{}));
  BOOST_TEST(!own_cores().empty());
  BOOST_TEST(!physical_cores(own_cores()).empty());
  BOOST_TEST((united(core_by_core(own_cores())) == own_cores()));
  BOOST_TEST(core_by_core(own_cores()).size() == physical_cores(own_cores()).size());
  BOOST_TEST(overlap({1, 2}, {2, 3}));
  BOOST_TEST(!overlap({1, 2}, {3}));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
