// Slices on a GPU: a reduce-scatter brings each rank the sum of what it owns, an all-gather every byte of
// what the others own.
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "comm/slices.h"
#include "comm/sums.h"
#include "on_gpu.h"
#include "rounded_sums.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(slices, *ranks(1, 2, 3, 4, 5, 8))

struct Draw {
  std::int64_t count;
  int shards;
  std::uint64_t seed;
  DType comm_dtype;
  comm::Slices slices;
};

/// The same on every rank.
Draw draw(std::mt19937_64& random, int round) {
  Draw one{.count = static_cast<std::int64_t>(random() % 3000),
           .shards = 1 + static_cast<int>(random() % 12),
           .seed = random(),
           .comm_dtype = std::vector{DType::float32, DType::bfloat16, DType::float16}[random() % 3],
           .slices = {}};
  one.slices = round % 3 == 0 ? comm::even_slices(one.count, world().size())
                              : random_slices(random, one.count, world().size(), 6);
  return one;
}

template <class T>
void check_reduce_scatter(OnGpu& gpu, MirroredBuffer& flat_buffer, const Draw& one, bool exact) {
  const comm::ShardMap map(one.shards, world().size());
  const auto sums = make_case<T>(flat_buffer.here, 64, one.count, one.shards, one.seed);
  sums.fill(map, world().rank());
  flat_buffer.upload();
  comm::TreeSum sum = sums.sum;
  sum.flat_buffer = flat_buffer.there.get();
  sum.comm_dtype = one.comm_dtype;
  gpu.transport().order_after(gpu.transport().start_reduce_scatter(sum, map, one.slices));
  flat_buffer.download();
  const DType comm_dtype = world().size() == 1 ? DType::float32 : one.comm_dtype;
  for (const comm::ElementRange range : one.slices.of(world().rank())) {
    for (std::int64_t i = range.first; i < range.end(); ++i) {
      const double limit =
          exact ? 0 : relative_error(comm_dtype) * sum_of_magnitudes<T>(one.seed, one.shards, i);
      const double away =
          static_cast<double>(sums.elements(0)[i] - sum_sent_as<T>(comm_dtype, one.seed, map, i));
      BOOST_TEST_REQUIRE(std::abs(away) <= limit, "element " << i << " of " << one.count << ", " << one.shards
                                                             << " shards, seed " << one.seed);
    }
  }
}

template <class T>
void check_all_gather(OnGpu& gpu, MirroredBuffer& flat_buffer, const Draw& one) {
  T* const values = reinterpret_cast<T*>(flat_buffer.here.accumulator(0) + 64);
  for (std::int64_t i = 0; i < one.count; ++i) values[i] = T(-1);
  for (const comm::ElementRange range : one.slices.of(world().rank())) {
    for (std::int64_t i = range.first; i < range.end(); ++i) values[i] = static_cast<T>(i % 251);
  }
  flat_buffer.upload();
  gpu.transport().order_after(gpu.transport().start_all_gather(
      {.flat_buffer = flat_buffer.there.get(), .offset_bytes = 64, .count = one.count, .dtype = dtype_of<T>},
      one.slices));
  flat_buffer.download();
  for (std::int64_t i = 0; i < one.count; ++i)
    BOOST_TEST_REQUIRE(values[i] == static_cast<T>(i % 251), "element " << i << " of " << one.count);
}

void check_all(bool reproducible) {
  std::mt19937_64 random(7);
  OnGpu gpu(reproducible);
  MirroredBuffer flat_buffer(gpu.transport(), gpu.stream(), 1 << 15, accumulators_for(12, world().size()));
  for (int round = 0; round < 15; ++round) {
    const Draw one = draw(random, round);
    check_reduce_scatter<float>(gpu, flat_buffer, one, reproducible);
    check_reduce_scatter<double>(gpu, flat_buffer, one, reproducible);
    check_all_gather<float>(gpu, flat_buffer, one);
    check_all_gather<std::int64_t>(gpu, flat_buffer, one);
    check_all_gather<std::uint8_t>(gpu, flat_buffer, one);
  }
}

/// NCCL takes 2048 calls in a group, of which there is one for each range.
BOOST_AUTO_TEST_CASE(slices_of_more_ranges_than_a_group_has_calls_are_right) {
  constexpr std::int64_t count = 2500;
  const auto size = static_cast<std::size_t>(world().size());
  std::vector<std::vector<comm::ElementRange>> ranges(size);
  for (std::int64_t i = 0; i < count; ++i) ranges[static_cast<std::size_t>(i) % size].push_back({i, 1});
  const Draw one{count, 3, 11, DType::float32, comm::Slices(count, ranges)};
  for (const bool reproducible : {true, false}) {
    OnGpu gpu(reproducible);
    MirroredBuffer flat_buffer(gpu.transport(), gpu.stream(), 1 << 15, accumulators_for(3, world().size()));
    check_reduce_scatter<float>(gpu, flat_buffer, one, reproducible);
    check_all_gather<float>(gpu, flat_buffer, one);
  }
}

BOOST_AUTO_TEST_CASE(slices_in_the_trees_order_have_the_bits_of_the_sum) { check_all(true); }

BOOST_AUTO_TEST_CASE(slices_in_the_order_of_nccl_hold_every_shard_once) { check_all(false); }

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
