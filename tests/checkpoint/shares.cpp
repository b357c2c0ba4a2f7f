// Which rank digests and writes what: everything once, at sensible edges, in balance.
#include "checkpoint/blocks.h"

#include <boost/test/unit_test.hpp>
#include <random>

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(shares)

namespace lc = checkpoint;

std::vector<std::uint64_t> random_sizes(std::mt19937_64& random) {
  const std::uint64_t edges[] = {
      0, 1, 4, 4096, lc::block_bytes - 1, lc::block_bytes, lc::block_bytes + 1, 9'999'999, 5'000'000'000};
  std::vector<std::uint64_t> sizes(random() % 20);
  for (std::uint64_t& size : sizes) size = edges[random() % std::size(edges)];
  return sizes;
}

/// Places in a file with gaps, not in order.
std::vector<lc::FileExtent> places_for(const std::vector<std::uint64_t>& sizes, std::mt19937_64& random) {
  std::vector<lc::FileExtent> places(sizes.size());
  std::vector<std::size_t> order(sizes.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  std::uint64_t offset = 2048;
  for (const std::size_t i : order) {
    places[i] = {sizes[i] == 0 ? 0 : offset, sizes[i]};
    offset += sizes[i] + random() % 3 * 777;
  }
  return places;
}

BOOST_AUTO_TEST_CASE(every_block_is_digested_by_exactly_one_rank) {
  const auto seed = std::random_device()();
  BOOST_TEST_MESSAGE("seed " << seed);
  std::mt19937_64 random(seed);
  for (int trial = 0; trial < 200; ++trial) {
    const auto sizes = random_sizes(random);
    const auto places = places_for(sizes, random);
    const int ranks = 1 + static_cast<int>(random() % 9);
    std::vector<std::uint64_t> digested(sizes.size()), blocks;
    for (const std::uint64_t size : sizes) blocks.push_back(lc::blocks_of(size));
    for (int rank = 0; rank < ranks; ++rank) {
      for (const lc::TensorExtent& extent : lc::extents_of_rank(places, rank, ranks)) {
        const lc::BlockRun run = lc::blocks_begun_in(extent);
        BOOST_REQUIRE(run.tensor == extent.tensor);
        BOOST_REQUIRE(run.first == digested[run.tensor]);  // ranks come in file order
        digested[run.tensor] += run.count;
        if (run.count == 0) continue;
        // Its first byte is in the extent, and what is behind the extent is less than a block.
        BOOST_REQUIRE(run.first * lc::block_bytes >= extent.from);
        const std::uint64_t last = run.first + run.count - 1, end = extent.from + extent.bytes;
        BOOST_REQUIRE(last * lc::block_bytes < end);
        BOOST_REQUIRE(lc::end_of_block(last, sizes[run.tensor]) < end + lc::block_bytes);
        BOOST_REQUIRE(lc::end_of_block(last, sizes[run.tensor]) <= sizes[run.tensor]);
      }
    }
    BOOST_TEST(digested == blocks, boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(every_byte_is_written_by_exactly_one_rank_and_cuts_lie_on_mebibytes_of_the_file) {
  const auto seed = std::random_device()();
  BOOST_TEST_MESSAGE("seed " << seed);
  std::mt19937_64 random(seed);
  for (int trial = 0; trial < 200; ++trial) {
    const auto sizes = random_sizes(random);
    const auto places = places_for(sizes, random);
    const int ranks = 1 + static_cast<int>(random() % 9);
    std::vector<std::uint64_t> covered(sizes.size());
    for (int rank = 0; rank < ranks; ++rank) {
      std::uint64_t last = 0;
      for (const lc::TensorExtent& extent : lc::extents_of_rank(places, rank, ranks)) {
        BOOST_REQUIRE(extent.bytes > 0);
        BOOST_REQUIRE(extent.offset >= last);
        BOOST_REQUIRE(extent.offset == places[extent.tensor].offset + extent.from);
        BOOST_REQUIRE(extent.from ==
                      covered[extent.tensor]);  // ranks come in file order, so each begins where one ended
        if (extent.from > 0) BOOST_REQUIRE(extent.offset % lc::block_bytes == 0);
        covered[extent.tensor] += extent.bytes;
        last = extent.offset + extent.bytes;
      }
    }
    BOOST_TEST(covered == sizes, boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(ranks_write_equal_shares_within_a_mebibyte) {
  const std::vector<std::uint64_t> sizes = {900'000'000, 3, 100'000'000, 77'777'777, 0, 4};
  std::mt19937_64 random(1);
  const auto places = places_for(sizes, random);
  std::uint64_t total = 0;
  for (const std::uint64_t size : sizes) total += size;
  for (int ranks = 1; ranks <= 7; ++ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      std::uint64_t mine = 0;
      for (const lc::TensorExtent& extent : lc::extents_of_rank(places, rank, ranks)) mine += extent.bytes;
      const auto fair = total / static_cast<std::uint64_t>(ranks);
      BOOST_TEST(mine + lc::block_bytes + 2048 >= fair);
      BOOST_TEST(mine <= fair + lc::block_bytes + 2048);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_digest_is_xxh3_64_of_the_blocks_digests) {
  // The value for no input is published with the algorithm.
  BOOST_TEST(lc::digest_of(nullptr, 0) == 0x2d06800538d394c2u);
  BOOST_TEST(lc::digest_of_blocks({}) == 0x2d06800538d394c2u);
  BOOST_TEST(lc::to_hex(0xabcu) == "0000000000000abc");
  std::uint64_t digest = 0;
  BOOST_TEST(lc::from_hex("0000000000000abc", digest));
  BOOST_TEST(digest == 0xabcu);
  for (const char* bad : {"", "abc", "0000000000000abg", "00000000000000abc", "-000000000000abc"})
    BOOST_TEST(!lc::from_hex(bad, digest));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
