// Which rank takes which GPU, and that two ranks of one node do not take the same one unasked.
#include "comm/nccl.h"

#include <boost/test/unit_test.hpp>
#include <set>

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(gpu_choice)

const comm::Topology two_nodes{{0, 0, 1, 1}, {0, 1, 0, 1}, {"node07", "node08"}};

BOOST_AUTO_TEST_CASE(ranks_of_one_node_with_one_gpu_are_found) {
  using Pair = std::pair<int, int>;
  BOOST_TEST((comm::shared_gpu(two_nodes, {"a", "b", "a", "b"}) == Pair{-1, -1}));  // of two nodes
  BOOST_TEST((comm::shared_gpu(two_nodes, {"a", "b", "c", "c"}) == Pair{2, 3}));
  BOOST_TEST((comm::shared_gpu(two_nodes, {"a", "a", "c", "c"}) == Pair{0, 1}));
  BOOST_TEST((comm::shared_gpu({{0}, {0}, {"here"}}, {"a"}) == Pair{-1, -1}));
}

BOOST_AUTO_TEST_CASE(the_error_names_both_ranks_the_gpu_the_node_and_what_to_do) {
  const std::string text = comm::sharing_text(two_nodes, {"a", "b", "0000:3b:00.0", "0000:3b:00.0"}, {2, 3});
  for (const char* part : {"ranks 2 and 3", "0000:3b:00.0", "node08", "2 ranks", "LOCKSTEP_SHARE_GPU=1"})
    BOOST_TEST((text.find(part) != std::string::npos), part << " in: " << text);
}

BOOST_AUTO_TEST_CASE(ranks_that_share_a_gpu_are_different_hosts_to_nccl) {
  std::set<std::string> hosts;
  for (int rank = 0; rank < 4; ++rank) {
    for (const auto& [name, value] : comm::sharing_environment(rank)) {
      if (name == "NCCL_HOSTID") hosts.insert(value);
    }
  }
  BOOST_TEST(hosts.size() == 4u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
