// Tree sums equal the serial fold over the shards, bit for bit, wherever the ranks run.
#include <mpi.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <random>
#include <vector>

#include "comm/mpi_calls.h"
#include "layouts.h"
#include "lockstep/base/error.h"
#include "sums.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(tree_sums, *ranks(1, 2, 3, 4, 5, 8))

template <class T>
void check_one(comm::CpuCommunicator& communicator, comm::FlatBuffer& flat_buffer, std::size_t offset_bytes,
               std::int64_t count, int shards, std::uint64_t seed) {
  const comm::ShardMap map(shards, communicator.size());
  const auto one = make_case<T>(flat_buffer, offset_bytes, count, shards, seed);
  one.fill(map, communicator.rank());
  communicator.order_after(communicator.start_tree_sum(one.sum, map));
  BOOST_TEST_REQUIRE(one.first_difference() == -1,
                     count << " elements, " << shards << " shards, seed " << seed);
}

BOOST_AUTO_TEST_CASE(the_order_of_additions_shows_in_these_numbers) {
  int different = 0;
  for (int element = 0; element < 100; ++element) {
    float in_row = 0;
    for (int shard = 0; shard < 6; ++shard) in_row += value_of<float>(1, shard, element);
    different += in_row != serial_sum<float>(1, {0, 6}, element);
  }
  BOOST_TEST(different > 20);
}

BOOST_AUTO_TEST_CASE(sums_equal_the_serial_fold_for_any_number_of_shards) {
  constexpr int max_shards = 24;
  const auto seed = common_seed(world());
  const auto flat_buffer = world().allocate_buffer(8192, accumulators_for(max_shards, world().size()));
  for (int shards = 1; shards <= max_shards; ++shards) {
    check_one<float>(world(), *flat_buffer, 64, 777, shards, seed);
    check_one<double>(world(), *flat_buffer, 128, 501, shards, seed);
  }
}

BOOST_AUTO_TEST_CASE(sums_are_exact_for_any_layout_of_ranks_on_nodes) {
  constexpr int max_shards = 24;
  const auto seed = common_seed(world());
  for (const auto& layout : layouts(world().size())) {
    BOOST_TEST_CONTEXT(text_of(layout)) {
      const auto nodes = comm::make_mpi_communicator(MPI_COMM_WORLD, layout, {.chunk_bytes = 256});
      const auto flat_buffer = nodes->allocate_buffer(8192, accumulators_for(max_shards, nodes->size()));
      for (int shards = 1; shards <= max_shards; ++shards) {
        check_one<float>(*nodes, *flat_buffer, 64, 777, shards, seed);
        check_one<double>(*nodes, *flat_buffer, 0, 333, shards, seed);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(every_length_is_summed_and_no_other_element_changes) {
  const auto seed = common_seed(world());
  for (const auto& layout : layouts(world().size())) {
    BOOST_TEST_CONTEXT(text_of(layout)) {
      const auto nodes = comm::make_mpi_communicator(MPI_COMM_WORLD, layout, {.chunk_bytes = 1000});
      const auto flat_buffer = nodes->allocate_buffer(1 << 16, accumulators_for(7, nodes->size()));
      auto* elements = reinterpret_cast<float*>(flat_buffer->accumulator(0));
      for (const std::int64_t count : {0, 1, 2, 15, 16, 17, 31, 33, 63, 65, 100, 1023, 4097, 12345}) {
        elements[15] = elements[16 + count] = -7.0f;
        check_one<float>(*nodes, *flat_buffer, 64, count, 7, seed);
        BOOST_TEST_REQUIRE(elements[15] == -7.0f);
        BOOST_TEST_REQUIRE(elements[16 + count] == -7.0f);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(many_sums_in_flight_complete_in_the_order_started) {
  constexpr int sums = 23;
  constexpr std::size_t room_bytes = 1 << 14;
  const auto seed = common_seed(world());
  if (world().rank() == 0) BOOST_TEST_MESSAGE("seed " << seed);
  for (const auto& layout : layouts(world().size())) {
    BOOST_TEST_CONTEXT(text_of(layout) << ", seed " << seed) {
      const auto nodes = comm::make_mpi_communicator(MPI_COMM_WORLD, layout, {.chunk_bytes = 512});
      const auto flat_buffer = nodes->allocate_buffer(sums * room_bytes, accumulators_for(24, nodes->size()));
      std::mt19937_64 common(seed);  // the same draws on every rank
      std::mt19937_64 own(seed + 1 +
                          static_cast<std::uint64_t>(nodes->rank()));  // ranks go at different paces
      for (int round = 0; round < 3; ++round) {
        std::vector<SumCase<float>> cases;
        std::vector<comm::Work> works;
        for (int i = 0; i < sums; ++i) {
          const auto count = static_cast<std::int64_t>(common() % (room_bytes / sizeof(float) + 1));
          const int shards = 1 + static_cast<int>(common() % 24);
          cases.push_back(make_case<float>(*flat_buffer, static_cast<std::size_t>(i) * room_bytes, count,
                                           shards, common()));
          const comm::ShardMap map(shards, nodes->size());
          cases.back().fill(map, nodes->rank());
          works.push_back(nodes->start_tree_sum(cases.back().sum, map));
          for (auto calls = own() % 4; calls > 0; --calls) nodes->progress();
        }
        BOOST_TEST_REQUIRE(std::is_sorted(works.begin(), works.end()));
        nodes->order_after(works[sums / 2]);
        for (int i = 0; i <= sums / 2; ++i) {
          BOOST_TEST_REQUIRE(nodes->done(works[static_cast<std::size_t>(i)]));
          BOOST_TEST_REQUIRE(cases[static_cast<std::size_t>(i)].first_difference() == -1);
        }
        nodes->order_after(works.back());
        for (const auto& one : cases) BOOST_TEST_REQUIRE(one.first_difference() == -1);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(other_collectives_may_run_while_sums_are_in_flight) {
  const auto seed = common_seed(world());
  for (const auto& layout : layouts(world().size())) {
    BOOST_TEST_CONTEXT(text_of(layout)) {
      const auto nodes = comm::make_mpi_communicator(MPI_COMM_WORLD, layout, {.chunk_bytes = 4096});
      const auto flat_buffer = nodes->allocate_buffer(1 << 17, accumulators_for(5, nodes->size()));
      const comm::ShardMap map(5, nodes->size());
      const auto one = make_case<double>(*flat_buffer, 0, 1 << 14, 5, seed);
      one.fill(map, nodes->rank());
      const comm::Work work = nodes->start_tree_sum(one.sum, map);
      nodes->barrier();
      const int mine = nodes->rank();
      std::vector<int> all(static_cast<std::size_t>(nodes->size()));
      nodes->all_gather(&mine, sizeof mine, all.data());
      BOOST_TEST(all.back() == nodes->size() - 1);
      nodes->order_after(work);
      BOOST_TEST(one.first_difference() == -1);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_parts_of_a_split_sum_on_their_own) {
  const auto seed = common_seed(world());
  for (const auto& layout : layouts(world().size())) {
    BOOST_TEST_CONTEXT(text_of(layout)) {
      const auto nodes = comm::make_mpi_communicator(MPI_COMM_WORLD, layout, {.chunk_bytes = 512});
      const auto half = nodes->split(nodes->rank() % 2, -nodes->rank());
      const auto flat_buffer = half->allocate_buffer(8192, accumulators_for(9, half->size()));
      check_one<float>(*half, *flat_buffer, 0, 1111, 9, seed + static_cast<std::uint64_t>(nodes->rank() % 2));
      const auto other = nodes->allocate_buffer(8192, 8);
      BOOST_CHECK_THROW(
          half->start_tree_sum({other.get(), 0, 1, DType::float32}, comm::ShardMap(9, half->size())),
          UsageError);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_fresh_flat_buffer_is_zeroed_and_aligned) {
  for (int round = 0; round < 2; ++round) {
    const int accumulators = 1 + world().rank() % 3;
    const auto flat_buffer = world().allocate_buffer(1000, accumulators);
    BOOST_TEST(flat_buffer->accumulators() == accumulators);
    BOOST_TEST(flat_buffer->accumulator_bytes() == 1000u);
    for (int accumulator = 0; accumulator < accumulators; ++accumulator) {
      std::byte* first = flat_buffer->accumulator(accumulator);
      BOOST_TEST(reinterpret_cast<std::uintptr_t>(first) % 64 == 0u);
      BOOST_TEST(std::all_of(first, first + 1000, [](std::byte b) { return b == std::byte{0}; }));
      std::fill(first, first + 1000, std::byte{0xff});
    }
    BOOST_CHECK_THROW(flat_buffer->accumulator(accumulators), UsageError);
  }
}

BOOST_AUTO_TEST_CASE(sums_that_cannot_be_made_are_refused) {
  const int size = world().size();
  const auto flat_buffer = world().allocate_buffer(1024, 1);
  const comm::ShardMap map(size, size);
  const auto start = [&](std::size_t offset_bytes, std::int64_t count, DType dtype) {
    world().start_tree_sum({flat_buffer.get(), offset_bytes, count, dtype}, map);
  };
  BOOST_CHECK_THROW(start(32, 1, DType::float32), UsageError);
  BOOST_CHECK_THROW(start(0, 257, DType::float32), UsageError);
  BOOST_CHECK_THROW(start(512, 65, DType::float64), UsageError);
  BOOST_CHECK_THROW(start(0, -1, DType::float32), UsageError);
  BOOST_CHECK_THROW(start(0, 1, DType::bfloat16), UsageError);
  BOOST_CHECK_THROW(world().start_tree_sum({nullptr, 0, 1, DType::float32}, map), UsageError);
  BOOST_CHECK_THROW(
      world().start_tree_sum({flat_buffer.get(), 0, 1, DType::float32}, comm::ShardMap(4, size + 1)),
      UsageError);
  BOOST_CHECK_THROW(world().done(1000), UsageError);
  BOOST_CHECK_THROW(world().allocate_buffer(64, 0), UsageError);
  if (size > 1) BOOST_CHECK_THROW(world().allocate_buffer(world().rank() == 1 ? 128 : 64, 1), UsageError);
}

BOOST_AUTO_TEST_CASE(a_flat_buffer_with_too_few_accumulators_is_refused) {
  if (world().size() != 3) return;  // of 8 shards on 3 ranks, rank 1's block 3..5 is no node of the tree
  const auto flat_buffer = world().allocate_buffer(64, 1);
  const comm::ShardMap map(8, 3);
  const auto needed = map.subtrees(world().rank()).size();
  BOOST_TEST((needed > 1) == (world().rank() < 2));
  if (needed > 1)
    BOOST_CHECK_THROW(world().start_tree_sum({flat_buffer.get(), 0, 1, DType::float32}, map), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
