// DistributedSampler against every row that PyTorch's gave.
#include <boost/test/unit_test.hpp>
#include <fstream>

#include "lockstep/data/sampler.h"
#include "support/golden.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(golden_sampler, *golden())

BOOST_AUTO_TEST_CASE(every_rank_gets_the_samples_that_pytorch_gives_it) {
  int rows = 0;
  for (const auto& path : golden_files("sampler", ".json")) {
    std::ifstream file(path);
    for (const auto& row : nlohmann::json::parse(file)) {
      const auto ranks = row.at("ranks").get<int>();
      const auto length = row.at("length").get<std::int64_t>();
      const auto drop_last = row.at("drop_last").get<bool>();
      const auto indices = row.at("indices").get<std::vector<std::vector<std::int64_t>>>();
      BOOST_REQUIRE(static_cast<int>(indices.size()) == ranks);
      for (int rank = 0; rank < ranks; ++rank) {
        const data::DistributedSampler sampler(
            {.length = length, .ranks = ranks, .rank = rank, .shuffle = false, .drop_last = drop_last});
        BOOST_TEST(sampler.indices() == indices[static_cast<std::size_t>(rank)],
                   path << ": length " << length << ", rank " << rank << " of " << ranks << ", drop_last "
                        << drop_last);
      }
      ++rows;
    }
  }
  BOOST_TEST(rows > 0);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
