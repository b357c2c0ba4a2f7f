// What the ranks of a world can do together, other than sums.
#include "support/world.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <numeric>
#include <string>
#include <vector>

using lockstep::test::world;

BOOST_AUTO_TEST_CASE(all_gather_returns_every_rank_s_bytes_in_rank_order) {
  for (int round = 0; round < 100; ++round) {
    const std::int64_t mine = world().rank() * 1000 + round;
    std::vector<std::int64_t> all(world().size(), -1);
    world().all_gather(&mine, sizeof mine, all.data());
    for (int rank = 0; rank < world().size(); ++rank) BOOST_TEST_REQUIRE(all[rank] == rank * 1000 + round);
  }
}
