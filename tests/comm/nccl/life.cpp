// Beginnings, ends and misuse of communicators between GPUs.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/clock.h"
#include "comm/backoff.h"
#include "comm/sums.h"
#include "lockstep/base/error.h"
#include "on_gpu.h"
#include "support/gpu_labels.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(life, *ranks(1, 2, 3, 4))

/// One sum over a shard a rank; started, not waited for.
struct Sum {
  Sum(comm::GradientTransport& communicator, cudaStream_t stream, std::int64_t count, std::uint64_t seed)
      : ranks(communicator),
        map(ranks.group().size(), ranks.group().size()),
        arena(ranks, stream, static_cast<std::size_t>(count) * sizeof(float), 1),
        values(make_case<float>(arena.here, 0, count, ranks.group().size(), seed)) {
    values.fill(map, ranks.group().rank());
    arena.upload();
  }
  comm::Ticket start() {
    comm::TreeSum sum = values.sum;
    sum.arena = arena.there.get();
    return ranks.start_tree_sum(sum, map);
  }
  void check(comm::Ticket ticket) {
    ranks.wait(ticket);
    arena.download();
    BOOST_TEST_REQUIRE(values.first_difference() == -1);
  }

  comm::GradientTransport& ranks;
  comm::ShardMap map;
  MirroredArena arena;
  SumCase<float> values;
};

BOOST_AUTO_TEST_CASE(ranks_that_share_a_gpu_unasked_get_one_error_that_names_them) {
  if (world().size() == 1 || visible_gpus() > 1) return;
  ::unsetenv("LOCKSTEP_SHARE_GPU");
  BOOST_CHECK_EXCEPTION(OnGpu(true), UsageError, [](const UsageError& error) {
    return std::string(error.what()).find("ranks 0 and 1 both use GPU") != std::string::npos;
  });
  ::setenv("LOCKSTEP_SHARE_GPU", "1", 1);
}

BOOST_AUTO_TEST_CASE(a_gpu_that_is_not_there_is_refused_on_all_ranks) {
  const int device = world().rank() == 0 ? visible_gpus() : 0;
  BOOST_CHECK_THROW(comm::make_nccl_transport(world(), {.device = device}), UsageError);
}

BOOST_AUTO_TEST_CASE(its_group_is_the_one_that_it_was_made_over) {
  OnGpu gpu(false);
  comm::GradientTransport& ranks = gpu.transport();
  BOOST_TEST(&ranks.group() == &world());
  BOOST_TEST(ranks.async_error().empty());
}

BOOST_AUTO_TEST_CASE(a_fresh_arena_is_zeroed_and_aligned) {
  OnGpu gpu(false);
  for (int round = 0; round < 2; ++round) {
    const int planes = 1 + world().rank() % 3;
    MirroredArena arena(gpu.transport(), gpu.stream(), 1000, planes);
    BOOST_TEST(arena.there->planes() == planes);
    BOOST_TEST(arena.there->plane_bytes() == 1000u);
    for (int plane = 0; plane < planes; ++plane)
      BOOST_TEST(reinterpret_cast<std::uintptr_t>(arena.there->plane(plane)) % 64 == 0u);
    arena.download();
    BOOST_TEST(std::all_of(arena.here.plane(0), arena.here.plane(0) + 1000,
                           [](std::byte b) { return b == std::byte{0}; }));
    std::fill(arena.here.plane(0), arena.here.plane(0) + 1000, std::byte{0xff});
    arena.upload();
    BOOST_CHECK_THROW(arena.there->plane(planes), UsageError);
  }
}

BOOST_AUTO_TEST_CASE(sums_that_cannot_be_made_are_refused) {
  OnGpu gpu(false);
  comm::GradientTransport& ranks = gpu.transport();
  const auto arena = ranks.allocate_arena(1024, 1);
  const comm::ShardMap map(world().size(), world().size());
  const auto start = [&](std::size_t offset_bytes, std::int64_t count, DType dtype) {
    ranks.start_tree_sum({arena.get(), offset_bytes, count, dtype}, map);
  };
  BOOST_CHECK_THROW(start(32, 1, DType::float32), UsageError);
  BOOST_CHECK_THROW(start(0, 257, DType::float32), UsageError);
  BOOST_CHECK_THROW(start(0, 1, DType::bfloat16), UsageError);
  BOOST_CHECK_THROW(ranks.done(1000), UsageError);
  BOOST_CHECK_THROW(ranks.allocate_arena(64, 0), UsageError);
  const auto other = world().allocate_arena(1024, 1);
  BOOST_CHECK_THROW(ranks.start_tree_sum({other.get(), 0, 1, DType::float32}, map), UsageError);
}

BOOST_AUTO_TEST_CASE(two_communicators_sum_side_by_side) {
  OnGpu gpu(true);
  const auto layers = gpu.transport().duplicate();
  Sum gradients(gpu.transport(), gpu.stream(), 100000, 1), statistics(*layers, gpu.stream(), 100, 2);
  for (int round = 0; round < 5; ++round) {
    gradients.values.fill(gradients.map, world().rank());
    statistics.values.fill(statistics.map, world().rank());
    gradients.arena.upload();
    statistics.arena.upload();
    const comm::Ticket large = gradients.start(), small = statistics.start();
    statistics.check(small);
    gradients.check(large);
  }
}

BOOST_AUTO_TEST_CASE(the_parts_of_a_split_sum_on_their_own) {
  const auto part = world().split(world().rank() % 2, -world().rank());
  OnGpu gpu(true, *part);
  Sum sum(gpu.transport(), gpu.stream(), 1111, static_cast<std::uint64_t>(world().rank() % 2));
  sum.check(sum.start());
}

BOOST_AUTO_TEST_CASE(ranks_whose_peer_has_left_find_out_and_come_to_an_end, *real()) {
  if (world().size() == 1) return;
  const bool leaves = world().rank() + 1 == world().size();
  bool found = false;
  try {
    OnGpu gpu(false);
    Sum sum(gpu.transport(), gpu.stream(), 1000, 3);
    sum.arena.upload();
    sum.ranks.wait(sum.start());
    sum.arena.download();
    if (leaves) throw std::runtime_error("this rank leaves");
    constexpr double longest_ms = 120e3;  // NCCL's to notice that a socket has closed, peer by peer
    const comm::Ticket ticket = sum.start();
    const Stopwatch watch;
    for (comm::Backoff backoff(true); !sum.ranks.done(ticket) && watch.elapsed_ms() < longest_ms;)
      backoff.pause();
  } catch (const FailureError& error) {
    found = true;
    BOOST_TEST_MESSAGE("rank " << world().rank() << ": " << error.what());
  } catch (const std::runtime_error&) {
  }
  BOOST_TEST(found == !leaves);
  world().barrier(0);  // everybody is here, having waited for nobody forever
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
