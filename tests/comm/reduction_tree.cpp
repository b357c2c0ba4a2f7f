#include "lockstep/comm/reduction_tree.h"

#include <boost/test/unit_test.hpp>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(reduction_tree)

using comm::ShardMap;
using comm::ShardRange;

std::string brackets(int first, int leaves) {
  return comm::fold_tree(
      {first, leaves}, [](int shard) { return std::to_string(shard); },
      [](std::string a, std::string b) { return "(" + a + "+" + b + ")"; });
}

bool is_node(ShardRange node, ShardRange range) {
  if (node == range) return true;
  if (node.count == 1) return false;
  const int left = comm::left_leaves(node.count);
  return is_node({node.first, left}, range) || is_node({node.first + left, node.count - left}, range);
}

BOOST_AUTO_TEST_CASE(a_node_splits_at_the_largest_power_of_two_below_it) {
  BOOST_TEST(comm::left_leaves(2) == 1);
  BOOST_TEST(comm::left_leaves(3) == 2);
  BOOST_TEST(comm::left_leaves(4) == 2);
  BOOST_TEST(comm::left_leaves(5) == 4);
  BOOST_TEST(comm::left_leaves(8) == 4);
  BOOST_TEST(comm::left_leaves(9) == 8);
  BOOST_CHECK_THROW(comm::left_leaves(1), UsageError);
}

BOOST_AUTO_TEST_CASE(folding_follows_the_tree) {
  BOOST_TEST(brackets(0, 1) == "0");
  BOOST_TEST(brackets(0, 3) == "((0+1)+2)");
  BOOST_TEST(brackets(0, 6) == "(((0+1)+(2+3))+(4+5))");
  BOOST_TEST(brackets(4, 2) == "(4+5)");
}

BOOST_AUTO_TEST_CASE(maximal_subtrees_are_nodes_that_cover_the_range_and_cannot_be_merged) {
  for (int leaves = 1; leaves <= 24; ++leaves) {
    for (int first = 0; first <= leaves; ++first) {
      for (int count = 0; first + count <= leaves; ++count) {
        const auto subtrees = comm::maximal_subtrees(leaves, {first, count});
        int next = first;
        for (std::size_t i = 0; i < subtrees.size(); ++i) {
          BOOST_TEST_REQUIRE(subtrees[i].first == next);
          BOOST_TEST_REQUIRE(is_node({0, leaves}, subtrees[i]));
          if (i > 0) {
            BOOST_TEST_REQUIRE(
                !is_node({0, leaves}, {subtrees[i - 1].first, subtrees[i - 1].count + subtrees[i].count}));
          }
          next = subtrees[i].end();
        }
        BOOST_TEST_REQUIRE(next == first + count);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_range_outside_the_tree_is_refused) {
  BOOST_CHECK_THROW(comm::maximal_subtrees(4, {2, 3}), UsageError);
  BOOST_CHECK_THROW(comm::maximal_subtrees(4, {-1, 2}), UsageError);
}

BOOST_AUTO_TEST_CASE(blocks_are_contiguous_and_differ_by_at_most_one_the_larger_first) {
  for (int shards = 1; shards <= 24; ++shards) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      const ShardMap map(shards, ranks);
      int next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const ShardRange block = map.block(rank);
        BOOST_TEST_REQUIRE(block.first == next);
        BOOST_TEST_REQUIRE(block.count == shards / ranks + (rank < shards % ranks ? 1 : 0));
        for (int shard = block.first; shard < block.end(); ++shard)
          BOOST_TEST_REQUIRE(map.owner(shard) == rank);
        next = block.end();
      }
      BOOST_TEST_REQUIRE(next == shards);
    }
  }
}

BOOST_AUTO_TEST_CASE(impossible_maps_ranks_and_shards_are_refused) {
  BOOST_CHECK_THROW(ShardMap(0, 1), UsageError);
  BOOST_CHECK_THROW(ShardMap(1, 0), UsageError);
  BOOST_CHECK_THROW(ShardMap(4, 2).block(2), UsageError);
  BOOST_CHECK_THROW(ShardMap(4, 2).owner(4), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
