// Evaluation: every sample once, and sums that do not know the number of ranks.
#include "lockstep/data/loader.h"

#include <boost/test/unit_test.hpp>

#include "data/files.h"
#include "lockstep/base/error.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(eval_batches, *ranks(1, 2, 3, 4))

using data::EvalBatches;

BOOST_AUTO_TEST_CASE(the_ranks_together_see_every_sample_once_in_chunks_that_are_the_same_for_all) {
  const Counting dataset(101);
  for (const int ranks : {1, 2, 3, 4, 7, 20}) {
    std::vector<std::int64_t> seen;
    int chunks = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      EvalBatches batches(dataset, 10, rank, ranks);
      BOOST_TEST(batches.chunks() == 11);
      for (int chunk = batches.mine().first; chunk < batches.mine().end(); ++chunk, ++chunks) {
        const Batch& batch = batches.read(chunk);
        BOOST_TEST(batch.index == chunk);
        BOOST_TEST(batch.samples() == (chunk < 10 ? 10 : 1));
        BOOST_TEST(batch["y"].data<std::int64_t>()[0] == 10 * chunk);
        for (const std::int64_t sample : values_of<std::int64_t>(batch["y"])) seen.push_back(sample);
      }
    }
    BOOST_TEST(chunks == 11);
    BOOST_TEST(seen == range(0, 101));
  }
}

BOOST_AUTO_TEST_CASE(sums_have_the_same_bits_at_every_number_of_ranks) {
  const Counting dataset(997);
  EvalBatches batches(dataset, 16, world());
  // Values whose sum depends on the order of additions.
  const auto value = [](int chunk) { return 1.0 / (chunk + 3) * (chunk % 5 == 0 ? 1e12 : 1e-3); };
  std::vector<double> mine;
  for (int chunk = batches.mine().first; chunk < batches.mine().end(); ++chunk) {
    mine.push_back(value(chunk));
    mine.push_back(static_cast<double>(batches.read(chunk).samples()));
  }
  double wanted = 0;
  for (int chunk = 0; chunk < batches.chunks(); ++chunk) wanted += value(chunk);
  const std::vector<double> sums = batches.sum(world(), mine, 2);
  BOOST_TEST(sums[0] == wanted);
  BOOST_TEST(sums[1] == 997.0);
}

BOOST_AUTO_TEST_CASE(ranks_without_chunks_take_part_in_sums) {
  const Counting dataset(5);
  const EvalBatches batches(dataset, 10, world());
  BOOST_TEST(batches.chunks() == 1);
  const std::vector<double> mine(static_cast<std::size_t>(batches.mine().count), 2.5);
  BOOST_TEST(batches.sum(world(), mine, 1) == std::vector<double>{2.5});
}

BOOST_AUTO_TEST_CASE(misuse_is_refused) {
  const Counting dataset(5), empty(0);
  BOOST_CHECK_THROW(EvalBatches(dataset, 0, 0, 1), UsageError);
  BOOST_CHECK_THROW(EvalBatches(empty, 1, 0, 1), UsageError);
  BOOST_CHECK_THROW(EvalBatches(dataset, 2, 0, 1).read(3), UsageError);
  const std::vector<double> wrong(9);
  BOOST_CHECK_THROW(EvalBatches(dataset, 2, 0, 1).sum(world(), wrong, 1), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
