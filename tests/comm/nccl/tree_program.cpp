// Who holds what of a sum between GPUs, and the program that each rank adds it by, carried out here.
#include "comm/nccl/tree_program.h"

#include <boost/test/unit_test.hpp>

#include "comm/sums.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(tree_program)

/// What rank `rank` adds up: its own planes, and the slots that hold the partial sums of all others.
template <class T>
T sum_on(const comm::ShardMap& map, int rank, const comm::PartialPlan& plan, const comm::TreeProgram& program,
         std::int64_t element) {
  const auto load = [&](int source) {
    int owner = rank, partial = source;
    if (source < 0) {
      for (owner = 0;; ++owner) {
        const auto place = static_cast<std::size_t>(owner);
        partial = ~source - plan.first_slot_of_rank[place];
        if (plan.first_slot_of_rank[place] >= 0 && partial >= 0 && partial < plan.partials_of_rank[place])
          break;
      }
    }
    return serial_sum<T>(7, map.subtrees(owner)[static_cast<std::size_t>(partial)], element);
  };
  return comm::sum_along_tree<comm::deepest_tree>(program.steps.data(),
                                                  static_cast<int>(program.steps.size()), load,
                                                  [](T left, T right) { return left + right; });
}

template <class T>
void check(int ranks, int shards) {
  const comm::ShardMap map(shards, ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const comm::PartialPlan plan(map, rank);
    BOOST_TEST_REQUIRE(plan.whole.depth <= comm::deepest_tree);
    for (std::int64_t element = 0; element < 3; ++element) {
      BOOST_TEST_REQUIRE(
          sum_on<T>(map, rank, plan, plan.whole, element) == serial_sum<T>(7, {0, shards}, element),
          ranks << " ranks, " << shards << " shards: rank " << rank);
      T planes = 0;
      for (const comm::ShardRange plane : map.subtrees(rank)) planes += serial_sum<T>(7, plane, element);
      if (!plan.own.steps.empty())
        BOOST_TEST_REQUIRE(sum_on<T>(map, rank, plan, plan.own, element) == planes);
    }
  }
}

BOOST_AUTO_TEST_CASE(every_rank_adds_to_the_bits_of_the_serial_fold) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (int shards = 1; shards <= 20; ++shards) {
      check<float>(ranks, shards);
      check<double>(ranks, shards);
    }
  }
  check<float>(130, 130);
  check<float>(50, 170);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
