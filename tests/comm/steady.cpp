// Once a step's sums and gathers have been made, making them again allocates nothing.
#include <mpi.h>

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <new>
#include <vector>

#include "comm/mpi_communicator.h"
#include "sums.h"
#include "support/world.h"

namespace comm = lockstep::comm;
namespace test = lockstep::test;
using test::world;

namespace {
std::size_t allocations = 0;  // by our code: MPI's own come through malloc
}  // namespace

void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  ++allocations;
  void* memory = nullptr;
  return posix_memalign(&memory, alignment, bytes) == 0 ? memory : nullptr;
}

BOOST_AUTO_TEST_CASE(a_step_that_repeats_allocates_nothing) {
  constexpr int shards = 7;
  constexpr std::size_t room_bytes = 1 << 14;
  constexpr int warm_steps = 2;
  for (const bool apart : {false, true}) {
    std::vector<int> layout(static_cast<std::size_t>(world().size()));
    for (std::size_t rank = 0; rank < layout.size(); ++rank)
      layout[rank] = apart ? static_cast<int>(rank % 2) : 0;
    const auto ranks = comm::make_mpi_communicator(MPI_COMM_WORLD, layout, {.piece_bytes = 1024});
    const comm::ShardMap map(shards, ranks->size());
    // 5 and 13 sums a step: in the ring of sums under way, and in that of waiting ones, each step begins
    // elsewhere.
    for (const int sums : {5, 13}) {
      const auto arena = ranks->allocate_arena(static_cast<std::size_t>(sums) * room_bytes,
                                               test::planes_for(shards, ranks->size()));
      std::vector<double> all(static_cast<std::size_t>(ranks->size()));
      std::size_t before = 0;
      for (int step = 0; step < 12; ++step) {
        if (step == warm_steps) before = allocations;
        comm::Ticket last = 0;
        for (int i = 0; i < sums; ++i) {
          const std::int64_t count = i == 3 ? 4096 : 100 * (i + 1);  // the largest in the middle
          last = ranks->start_tree_sum(
              {arena.get(), static_cast<std::size_t>(i) * room_bytes, count, lockstep::DType::float32}, map);
          ranks->progress();
        }
        ranks->wait(last);
        const double mine = step;
        if (!apart) ranks->all_gather(&mine, sizeof mine, all.data());
      }
      BOOST_TEST(allocations - before == 0u);
    }
  }
}
