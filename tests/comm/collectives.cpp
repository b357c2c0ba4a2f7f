// Reduce-scatter and all-gather: the halves of a sum, over any slices, wherever the ranks run.
#include <mpi.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "comm/mpi_calls.h"
#include "layouts.h"
#include "lockstep/base/error.h"
#include "slices.h"
#include "sums.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(collectives, *ranks(1, 2, 3, 4, 5))

constexpr int shards = 7;
constexpr std::size_t room_bytes = 1 << 14;

/// The first of the rank's elements that is not the serial sum, or -1.
template <class T>
std::int64_t first_wrong_of(const SumCase<T>& one, const comm::Slices& slices, int rank) {
  for (const comm::ElementRange range : slices.of(rank)) {
    for (std::int64_t i = range.first; i < range.end(); ++i) {
      const T expected = serial_sum<T>(one.seed, {0, one.shards}, i);
      if (std::memcmp(&expected, &one.elements(0)[i], sizeof(T)) != 0) return i;
    }
  }
  return -1;
}

std::byte byte_of(std::uint64_t seed, std::size_t index) {
  return static_cast<std::byte>((seed + index * 0x9e3779b97f4a7c15u) >> 40);
}

/// An all-gather of a test: each rank fills what it owns, and then looks for everything.
struct GatherCase {
  comm::TreeSum vector;
  comm::Slices slices;
  std::uint64_t seed;

  std::size_t bytes() const { return static_cast<std::size_t>(vector.count) * bytes_of(vector.dtype); }
  std::byte* first() const { return vector.flat_buffer->accumulator(0) + vector.offset_bytes; }

  void fill(int rank) const {
    std::fill_n(first(), bytes(), std::byte{0x77});
    const std::size_t width = bytes_of(vector.dtype);
    for (const comm::ElementRange range : slices.of(rank)) {
      for (std::size_t i = static_cast<std::size_t>(range.first) * width;
           i < static_cast<std::size_t>(range.end()) * width; ++i)
        first()[i] = byte_of(seed, i);
    }
  }
  bool whole() const {
    for (std::size_t i = 0; i < bytes(); ++i) {
      if (first()[i] != byte_of(seed, i)) return false;
    }
    return true;
  }
};

BOOST_AUTO_TEST_CASE(a_reduce_scatter_has_the_bits_of_the_sum_for_any_owners) {
  const auto seed = common_seed(world());
  for (const auto& layout : layouts(world().size())) {
    BOOST_TEST_CONTEXT(text_of(layout) << ", seed " << seed) {
      const auto nodes = comm::make_mpi_communicator(MPI_COMM_WORLD, layout, {.chunk_bytes = 512});
      const auto flat_buffer = nodes->allocate_buffer(room_bytes, accumulators_for(shards, nodes->size()));
      const comm::ShardMap map(shards, nodes->size());
      std::mt19937_64 common(seed);
      for (const std::int64_t count : {0, 1, 17, 500, 1999}) {
        for (const int max_ranges : {1, 5, 40}) {
          const comm::Slices slices = random_slices(common, count, nodes->size(), max_ranges);
          const auto floats = make_case<float>(*flat_buffer, 64, count, shards, common());
          floats.fill(map, nodes->rank());
          nodes->order_after(nodes->start_reduce_scatter(floats.sum, map, slices));
          BOOST_TEST_REQUIRE(first_wrong_of(floats, slices, nodes->rank()) == -1);
          const auto doubles = make_case<double>(*flat_buffer, 128, count, shards, common());
          doubles.fill(map, nodes->rank());
          nodes->order_after(nodes->start_reduce_scatter(doubles.sum, map, slices));
          BOOST_TEST_REQUIRE(first_wrong_of(doubles, slices, nodes->rank()) == -1);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(an_all_gather_brings_every_rank_the_whole_vector_of_any_element_type) {
  const auto seed = common_seed(world());
  for (const auto& layout : layouts(world().size())) {
    BOOST_TEST_CONTEXT(text_of(layout) << ", seed " << seed) {
      const auto nodes = comm::make_mpi_communicator(MPI_COMM_WORLD, layout, {.chunk_bytes = 512});
      const auto flat_buffer = nodes->allocate_buffer(room_bytes, 1);
      std::mt19937_64 common(seed);
      for (const DType dtype : {DType::uint8, DType::bfloat16, DType::float16, DType::float32, DType::int32,
                                DType::float64, DType::int64}) {
        for (const std::int64_t count : {0, 1, 17, 1999}) {
          for (const int max_ranges : {1, 30}) {
            const GatherCase one{{flat_buffer.get(), 64, count, dtype},
                                 random_slices(common, count, nodes->size(), max_ranges),
                                 common()};
            one.fill(nodes->rank());
            flat_buffer->accumulator(0)[63] = one.first()[one.bytes()] = std::byte{0x55};
            nodes->order_after(nodes->start_all_gather(one.vector, one.slices));
            BOOST_TEST_REQUIRE(one.whole(), count << " " << to_string(dtype));
            BOOST_TEST_REQUIRE((flat_buffer->accumulator(0)[63] == std::byte{0x55}));
            BOOST_TEST_REQUIRE((one.first()[one.bytes()] == std::byte{0x55}));
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(exchanges_of_all_kinds_are_carried_out_side_by_side_in_order) {
  constexpr int collectives = 24;
  const auto seed = common_seed(world());
  if (world().rank() == 0) BOOST_TEST_MESSAGE("seed " << seed);
  for (const auto& layout : layouts(world().size())) {
    BOOST_TEST_CONTEXT(text_of(layout) << ", seed " << seed) {
      const auto nodes = comm::make_mpi_communicator(MPI_COMM_WORLD, layout, {.chunk_bytes = 256});
      const auto flat_buffer =
          nodes->allocate_buffer(collectives * room_bytes, accumulators_for(shards, nodes->size()));
      const comm::ShardMap map(shards, nodes->size());
      std::mt19937_64 common(seed);
      std::mt19937_64 own(seed + 1 + static_cast<std::uint64_t>(nodes->rank()));
      std::vector<SumCase<float>> sums;
      std::vector<std::pair<SumCase<float>, comm::Slices>> scatters;
      std::vector<GatherCase> gathers;
      comm::Work last = 0;
      for (int i = 0; i < collectives; ++i) {
        const std::size_t offset = static_cast<std::size_t>(i) * room_bytes;
        const auto count = static_cast<std::int64_t>(common() % (room_bytes / sizeof(float) + 1));
        const comm::Slices slices = random_slices(common, count, nodes->size(), 8);
        const auto one = make_case<float>(*flat_buffer, offset, count, shards, common());
        comm::Work work = 0;
        switch (common() % 3) {
          case 0:
            sums.push_back(one);
            one.fill(map, nodes->rank());
            work = nodes->start_tree_sum(one.sum, map);
            break;
          case 1:
            scatters.emplace_back(one, slices);
            one.fill(map, nodes->rank());
            work = nodes->start_reduce_scatter(one.sum, map, slices);
            break;
          default:
            gathers.push_back({one.sum, slices, one.seed});
            gathers.back().fill(nodes->rank());
            work = nodes->start_all_gather(one.sum, slices);
        }
        BOOST_TEST_REQUIRE(work == last + 1);
        last = work;
        for (auto calls = own() % 3; calls > 0; --calls) nodes->progress();
      }
      nodes->order_after(last);
      for (const auto& one : sums) BOOST_TEST_REQUIRE(one.first_difference() == -1);
      for (const auto& [one, slices] : scatters)
        BOOST_TEST_REQUIRE(first_wrong_of(one, slices, nodes->rank()) == -1);
      for (const auto& one : gathers) BOOST_TEST_REQUIRE(one.whole());
    }
  }
}

BOOST_AUTO_TEST_CASE(a_reduce_scatter_and_an_all_gather_make_a_sum) {
  const auto seed = common_seed(world());
  for (const auto& layout : layouts(world().size())) {
    BOOST_TEST_CONTEXT(text_of(layout)) {
      const auto nodes = comm::make_mpi_communicator(MPI_COMM_WORLD, layout, {.chunk_bytes = 1024});
      const auto flat_buffer = nodes->allocate_buffer(room_bytes, accumulators_for(shards, nodes->size()));
      const comm::ShardMap map(shards, nodes->size());
      std::mt19937_64 common(seed);
      const auto slices = random_slices(common, 3001, nodes->size(), 9);
      const auto one = make_case<float>(*flat_buffer, 64, 3001, shards, seed);
      one.fill(map, nodes->rank());
      nodes->order_after(nodes->start_reduce_scatter(one.sum, map, slices));
      nodes->order_after(nodes->start_all_gather(one.sum, slices));
      BOOST_TEST(one.first_difference() == -1);
    }
  }
}

BOOST_AUTO_TEST_CASE(slices_of_another_vector_are_refused) {
  const int size = world().size();
  const auto flat_buffer = world().allocate_buffer(1024, 1);
  const comm::ShardMap map(size, size);
  const comm::TreeSum vector{flat_buffer.get(), 0, 100, DType::float32};
  BOOST_CHECK_THROW(world().start_all_gather(vector, {}), UsageError);
  BOOST_CHECK_THROW(world().start_all_gather(vector, comm::even_slices(99, size)), UsageError);
  BOOST_CHECK_THROW(world().start_all_gather(vector, comm::even_slices(100, size + 1)), UsageError);
  BOOST_CHECK_THROW(world().start_reduce_scatter(vector, map, comm::even_slices(101, size)), UsageError);
  const comm::TreeSum bytes{flat_buffer.get(), 0, 100, DType::uint8};
  BOOST_CHECK_THROW(world().start_reduce_scatter(bytes, map, comm::even_slices(100, size)), UsageError);
  comm::TreeSum odd_dtype = vector;
  odd_dtype.comm_dtype = DType::int32;
  BOOST_CHECK_THROW(world().start_tree_sum(odd_dtype, map), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
