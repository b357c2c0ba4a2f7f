// Who owns which elements.
#include "lockstep/autograd/partition.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <memory>
#include <random>
#include <vector>

#include "support/forwarding.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(partition)

constexpr std::int64_t block = Partition::block_elements;

/// Says that it is one of many.
class OneOfMany final : public Forwarding {
 public:
  OneOfMany(comm::CpuCommunicator& real, int rank, int size) : Forwarding(real), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }

 private:
  int rank_, size_;
};

struct Alone {
  std::unique_ptr<comm::CpuCommunicator> self = comm::make_self_communicator();
};

std::int64_t blocks_in(const comm::ElementRange& range) { return (range.count + block - 1) / block; }

BOOST_FIXTURE_TEST_CASE(every_element_has_one_owner_in_the_order_of_ranks_and_cuts_lie_between_blocks,
                        Alone) {
  const unsigned seed = std::random_device{}();
  BOOST_TEST_MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::int64_t> sizes(1 + random() % 20);
    for (std::int64_t& size : sizes)
      size = static_cast<std::int64_t>(random() % (random() % 2 ? 30 * block : 9));
    const int ranks = 1 + static_cast<int>(random() % 17);
    OneOfMany many(*self, 0, ranks);
    const Partition partition(sizes, many);
    std::vector<std::int64_t> blocks_of_rank(static_cast<std::size_t>(ranks));
    for (std::size_t p = 0; p < sizes.size(); ++p) {
      std::int64_t covered = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const comm::ElementRange range = partition.range(p, rank);
        BOOST_REQUIRE(range.first == covered);
        BOOST_REQUIRE(range.count >= 0);
        BOOST_REQUIRE((range.first % block == 0 || range.count == 0));
        covered = range.end();
        blocks_of_rank[static_cast<std::size_t>(rank)] += blocks_in(range);
      }
      BOOST_REQUIRE(covered == sizes[p]);
    }
    const auto [least, most] = std::minmax_element(blocks_of_rank.begin(), blocks_of_rank.end());
    BOOST_REQUIRE(*most - *least <= 1);
  }
}

BOOST_FIXTURE_TEST_CASE(every_rank_sees_the_same_shares_and_its_own_in_them, Alone) {
  const std::vector<std::int64_t> sizes{3, 10 * block + 1, 0, 5 * block, block};
  OneOfMany first(*self, 0, 3);
  const Partition reference(sizes, first);
  for (int rank = 0; rank < 3; ++rank) {
    OneOfMany many(*self, rank, 3);
    const Partition partition(sizes, many);
    for (std::size_t p = 0; p < sizes.size(); ++p) {
      for (int other = 0; other < 3; ++other)
        BOOST_CHECK(partition.range(p, other) == reference.range(p, other));
      BOOST_CHECK(partition.mine(p) == reference.range(p, rank));
    }
  }
}

BOOST_FIXTURE_TEST_CASE(blocks_left_over_go_round_the_ranks_from_one_parameter_to_the_next, Alone) {
  OneOfMany many(*self, 0, 4);
  const Partition partition({2 * block, 3 * block, 7, 6 * block}, many);
  using Range = comm::ElementRange;
  BOOST_CHECK((partition.range(0, 0) == Range{0, block}));
  BOOST_CHECK((partition.range(0, 1) == Range{block, block}));
  BOOST_TEST(partition.range(0, 2).count == 0);
  BOOST_CHECK((partition.range(1, 0) == Range{0, block}));  // after ranks 2 and 3
  BOOST_TEST(partition.range(1, 1).count == 0);
  BOOST_CHECK((partition.range(1, 3) == Range{2 * block, block}));
  BOOST_CHECK((partition.range(2, 1) == Range{0, 7}));
  BOOST_CHECK((partition.range(3, 0) == Range{0, block}));
  BOOST_CHECK((partition.range(3, 2) == Range{2 * block, 2 * block}));
}

BOOST_FIXTURE_TEST_CASE(one_rank_owns_everything, Alone) {
  const Partition partition({5, 3 * block + 1}, *self);
  BOOST_CHECK((partition.mine(0) == comm::ElementRange{0, 5}));
  BOOST_CHECK((partition.mine(1) == comm::ElementRange{0, 3 * block + 1}));
}

BOOST_FIXTURE_TEST_CASE(an_undivided_parameter_has_one_owner_and_ranks_differ_by_the_largest_at_most, Alone) {
  const unsigned seed = std::random_device{}();
  BOOST_TEST_MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::int64_t> sizes(1 + random() % 20);
    std::vector<bool> undivided;
    for (std::int64_t& size : sizes) {
      size = static_cast<std::int64_t>(random() % (random() % 2 ? 30 * block : 9));
      undivided.push_back(random() % 2 == 0);
    }
    const int ranks = 1 + static_cast<int>(random() % 9);
    OneOfMany many(*self, 0, ranks);
    const Partition partition(sizes, many, undivided);
    std::vector<std::int64_t> undivided_of_rank(static_cast<std::size_t>(ranks)),
        blocks_of_rank = undivided_of_rank;
    std::int64_t largest = 0;
    for (std::size_t p = 0; p < sizes.size(); ++p) {
      std::int64_t covered = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const comm::ElementRange range = partition.range(p, rank);
        BOOST_REQUIRE(range.first == covered);
        if (undivided[p]) BOOST_REQUIRE((range.count == 0 || range.count == sizes[p]));
        covered = range.end();
        if (undivided[p])
          undivided_of_rank[static_cast<std::size_t>(rank)] += range.count;
        else
          blocks_of_rank[static_cast<std::size_t>(rank)] += blocks_in(range);
      }
      BOOST_REQUIRE(covered == sizes[p]);
      if (undivided[p]) largest = std::max(largest, sizes[p]);
    }
    const auto spread = [](const std::vector<std::int64_t>& loads) {
      const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
      return *most - *least;
    };
    BOOST_REQUIRE(spread(undivided_of_rank) <= largest);
    BOOST_REQUIRE(spread(blocks_of_rank) <= 1);
  }
}

BOOST_FIXTURE_TEST_CASE(the_largest_undivided_parameter_is_placed_first_and_equal_ones_in_order, Alone) {
  OneOfMany many(*self, 0, 2);
  const Partition partition({5, 9, 5, 4, 2 * block}, many, {true, true, true, true, false});
  const auto owner = [&](std::size_t param) { return partition.range(param, 0).count > 0 ? 0 : 1; };
  BOOST_TEST(owner(1) == 0);
  BOOST_TEST(owner(0) == 1);
  BOOST_TEST(owner(2) == 1);
  BOOST_TEST(owner(3) == 0);
  BOOST_TEST(partition.range(4, 0).count == block);
  BOOST_CHECK((partition != Partition({5, 9, 5, 4, 2 * block}, many)));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
