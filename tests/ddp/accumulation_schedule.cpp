// AccumulationSchedule: what every accumulation buffer holds after a rank's last group of shards.
#include "ddp/gradient_buffer.h"

#include <boost/test/unit_test.hpp>
#include <string>

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(accumulation_schedule)

using namespace ddp;

/// The sum over a node, spelled out: "((0+1)+2)".
std::string spelled(comm::ShardRange node) {
  return comm::fold_tree(
      node, [](int shard) { return std::to_string(shard); },
      [](const std::string& a, const std::string& b) { return "(" + a + "+" + b + ")"; });
}

std::vector<std::string> run(const AccumulationSchedule& schedule, int first) {
  std::vector<std::string> buffers(static_cast<std::size_t>(schedule.buffers()));
  for (const auto& [first_of_group, count, buffer, folds] : schedule.groups()) {
    buffers.at(static_cast<std::size_t>(buffer)) = spelled({first + first_of_group, count});
    for (int p = buffer; p > buffer - folds; --p) {
      std::string& left = buffers.at(static_cast<std::size_t>(p - 1));
      left = "(" + left + "+" + buffers[static_cast<std::size_t>(p)] + ")";
    }
  }
  return buffers;
}

BOOST_AUTO_TEST_CASE(each_buffer_ends_with_the_sum_of_its_maximal_subtree) {
  for (int shards = 1; shards <= 33; ++shards) {
    for (int ranks = 1; ranks <= shards + 1; ++ranks) {
      const comm::ShardMap map(shards, ranks);
      for (int rank = 0; rank < ranks; ++rank) {
        for (const int at_once : {1, 2, 3, 4, 8, 33}) {
          const AccumulationSchedule schedule(shards, map.block(rank), at_once);
          const auto buffers = run(schedule, map.block(rank).first);
          const auto subtrees = map.subtrees(rank);
          BOOST_TEST(schedule.subtrees() == static_cast<int>(subtrees.size()));
          BOOST_TEST(schedule.largest_group() <= at_once);
          for (std::size_t p = 0; p < subtrees.size(); ++p) BOOST_TEST(buffers.at(p) == spelled(subtrees[p]));
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_power_of_two_at_once_leaves_a_groupth_of_the_passes) {
  BOOST_TEST(AccumulationSchedule(8, {0, 8}, 4).groups().size() == 2u);
  BOOST_TEST(AccumulationSchedule(8, {0, 8}, 8).groups().size() == 1u);
  BOOST_TEST(AccumulationSchedule(8, {0, 8}, 8).buffers() == 1);
}

BOOST_AUTO_TEST_CASE(a_power_of_two_of_shards_takes_one_buffer_more_than_its_logarithm) {
  for (int log = 0; log <= 6; ++log)
    BOOST_TEST(AccumulationSchedule(1 << log, {0, 1 << log}).buffers() == log + 1);
}

BOOST_AUTO_TEST_CASE(a_rank_without_shards_has_the_one_buffer_that_receives_the_sum) {
  const AccumulationSchedule schedule(1, {1, 0});
  BOOST_TEST(schedule.buffers() == 1);
  BOOST_TEST(schedule.groups().empty());
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
