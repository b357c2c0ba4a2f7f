// Once a step's collectives and gathers have been made, making them again allocates nothing.
#include <mpi.h>

#include <boost/test/unit_test.hpp>
#include <optional>
#include <random>
#include <vector>

#include "comm/mpi_calls.h"
#include "slices.h"
#include "sums.h"
#include "support/allocations.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(steady, *ranks(1, 2, 3, 4))

BOOST_AUTO_TEST_CASE(what_mpi_allocates_is_told_apart) {
  const AllocationCount count;
  MPI_Datatype pair = MPI_DATATYPE_NULL;
  MPI_Type_contiguous(2, MPI_INT, &pair);
  MPI_Type_free(&pair);
  BOOST_TEST(count.made().own == 0);
  BOOST_TEST(count.made().others > 0);
}

BOOST_AUTO_TEST_CASE(a_step_that_repeats_allocates_nothing) {
  constexpr int shards = 7;
  constexpr std::size_t room_bytes = 1 << 14;
  constexpr int warm_steps = 2;
  for (const bool apart : {false, true}) {
    std::vector<int> layout(static_cast<std::size_t>(world().size()));
    for (std::size_t rank = 0; rank < layout.size(); ++rank)
      layout[rank] = apart ? static_cast<int>(rank % 2) : 0;
    const auto ranks = comm::make_mpi_communicator(MPI_COMM_WORLD, layout, {.chunk_bytes = 1024});
    const comm::ShardMap map(shards, ranks->size());
    // 5 and 13 collectives a step: in the ring of active ones, and in that of waiting ones, each step
    // begins elsewhere.
    for (const int sums : {5, 13}) {
      const auto flat_buffer = ranks->allocate_buffer(static_cast<std::size_t>(sums) * room_bytes,
                                                      accumulators_for(shards, ranks->size()));
      std::vector<comm::Slices> slices;
      std::mt19937_64 random(9);
      for (int i = 0; i < sums; ++i) {
        const std::int64_t count = i == 3 ? 4096 : 100 * (i + 1);  // the largest in the middle
        slices.push_back(random_slices(random, count, ranks->size(), 5));
      }
      std::vector<double> all(static_cast<std::size_t>(ranks->size()));
      std::optional<AllocationCount> allocations;
      for (int step = 0; step < 12; ++step) {
        if (step == warm_steps) allocations.emplace();
        comm::Work last = 0;
        for (int i = 0; i < sums; ++i) {
          const comm::Slices& cut = slices[static_cast<std::size_t>(i)];
          comm::TreeSum vector{flat_buffer.get(), static_cast<std::size_t>(i) * room_bytes, cut.count()};
          if (i % 2 == 1) vector.comm_dtype = DType::bfloat16;
          last = i % 3 == 0   ? ranks->start_tree_sum(vector, map)
                 : i % 3 == 1 ? ranks->start_reduce_scatter(vector, map, cut)
                              : ranks->start_all_gather(vector, cut);
          ranks->progress();
        }
        ranks->order_after(last);
        const double mine = step;
        if (!apart) ranks->all_gather(&mine, sizeof mine, all.data());
      }
      BOOST_TEST(allocations->made().own == 0);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
