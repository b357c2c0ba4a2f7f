// Beginnings, ends and misuse of communicators between GPUs.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/thread.h"
#include "comm/sums.h"
#include "lockstep/base/error.h"
#include "on_gpu.h"
#include "support/environment.h"
#include "support/gpu_labels.h"
#include "support/mentions.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(life, *ranks(1, 2, 3, 4))

/// One sum over a shard a rank; started, not waited for.
struct Sum {
  Sum(comm::GradientTransport& communicator, cudaStream_t stream, std::int64_t count, std::uint64_t seed)
      : ranks(communicator),
        map(ranks.group().size(), ranks.group().size()),
        flat_buffer(ranks, stream, static_cast<std::size_t>(count) * sizeof(float), 1),
        values(make_case<float>(flat_buffer.here, 0, count, ranks.group().size(), seed)) {
    values.fill(map, ranks.group().rank());
    flat_buffer.upload();
  }
  void refill() {
    values.fill(map, ranks.group().rank());
    flat_buffer.upload();
  }
  comm::Work start() {
    comm::TreeSum sum = values.sum;
    sum.flat_buffer = flat_buffer.there.get();
    return ranks.start_tree_sum(sum, map);
  }
  void check(comm::Work work) {
    ranks.order_after(work);
    flat_buffer.download();
    BOOST_TEST_REQUIRE(values.first_difference() == -1);
  }

  comm::GradientTransport& ranks;
  comm::ShardMap map;
  MirroredBuffer flat_buffer;
  SumCase<float> values;
};

BOOST_AUTO_TEST_CASE(ranks_that_share_a_gpu_unasked_get_one_error_that_names_them) {
  const int gpus = visible_gpus();
  if (world().size() <= gpus) return;
  Environment environment;
  environment.unset("LOCKSTEP_SHARE_GPU");
  BOOST_CHECK_EXCEPTION(OnGpu(true), UsageError,
                        mentions("ranks 0 and " + std::to_string(gpus) + " both use GPU"));
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

BOOST_AUTO_TEST_CASE(a_fresh_flat_buffer_is_zeroed_and_aligned) {
  OnGpu gpu(false);
  for (int round = 0; round < 2; ++round) {
    const int accumulators = 1 + world().rank() % 3;
    MirroredBuffer flat_buffer(gpu.transport(), gpu.stream(), 1000, accumulators);
    BOOST_TEST(flat_buffer.there->accumulators() == accumulators);
    BOOST_TEST(flat_buffer.there->accumulator_bytes() == 1000u);
    for (int accumulator = 0; accumulator < accumulators; ++accumulator)
      BOOST_TEST(reinterpret_cast<std::uintptr_t>(flat_buffer.there->accumulator(accumulator)) % 64 == 0u);
    flat_buffer.download();
    BOOST_TEST(std::all_of(flat_buffer.here.accumulator(0), flat_buffer.here.accumulator(0) + 1000,
                           [](std::byte b) { return b == std::byte{0}; }));
    std::fill(flat_buffer.here.accumulator(0), flat_buffer.here.accumulator(0) + 1000, std::byte{0xff});
    flat_buffer.upload();
    BOOST_CHECK_THROW(flat_buffer.there->accumulator(accumulators), UsageError);
  }
}

BOOST_AUTO_TEST_CASE(sums_that_cannot_be_made_are_refused) {
  OnGpu gpu(false);
  comm::GradientTransport& ranks = gpu.transport();
  const auto flat_buffer = ranks.allocate_buffer(1024, 1);
  const comm::ShardMap map(world().size(), world().size());
  const auto start = [&](std::size_t offset_bytes, std::int64_t count, DType dtype) {
    ranks.start_tree_sum({flat_buffer.get(), offset_bytes, count, dtype}, map);
  };
  BOOST_CHECK_THROW(start(32, 1, DType::float32), UsageError);
  BOOST_CHECK_THROW(start(0, 257, DType::float32), UsageError);
  BOOST_CHECK_THROW(start(0, 1, DType::bfloat16), UsageError);
  BOOST_CHECK_THROW(ranks.done(1000), UsageError);
  BOOST_CHECK_THROW(ranks.allocate_buffer(64, 0), UsageError);
  const auto other = world().allocate_buffer(1024, 1);
  BOOST_CHECK_THROW(ranks.start_tree_sum({other.get(), 0, 1, DType::float32}, map), UsageError);
}

BOOST_AUTO_TEST_CASE(two_communicators_sum_side_by_side) {
  OnGpu gpu(true);
  const auto layers = gpu.transport().duplicate();
  Sum gradients(gpu.transport(), gpu.stream(), 100000, 1), statistics(*layers, gpu.stream(), 100, 2);
  for (int round = 0; round < 5; ++round) {
    gradients.values.fill(gradients.map, world().rank());
    statistics.values.fill(statistics.map, world().rank());
    gradients.flat_buffer.upload();
    statistics.flat_buffer.upload();
    const comm::Work large = gradients.start(), small = statistics.start();
    statistics.check(small);
    gradients.check(large);
  }
}

void begin_capture(cudaStream_t stream) {
  BOOST_REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
}

BOOST_AUTO_TEST_CASE(a_larger_sum_between_launches_leaves_a_graph_its_scratch_memory) {
  OnGpu gpu(true);
  Sum captured(gpu.transport(), gpu.stream(), 1000, 5), larger(gpu.transport(), gpu.stream(), 40'000, 6);
  captured.check(captured.start());  // so that there is scratch memory
  begin_capture(gpu.stream());
  gpu.transport().order_after(captured.start());
  cudaGraph_t graph = nullptr;
  BOOST_REQUIRE(cudaStreamEndCapture(gpu.stream(), &graph) == cudaSuccess);
  cudaGraphExec_t launched = nullptr;
  BOOST_REQUIRE(cudaGraphInstantiate(&launched, graph, 0) == cudaSuccess);
  larger.check(larger.start());
  for (int launch = 0; launch < 2; ++launch) {
    captured.refill();
    BOOST_REQUIRE(cudaGraphLaunch(launched, gpu.stream()) == cudaSuccess);
    captured.check(gpu.transport().after_graphs());
    larger.refill();
    larger.check(larger.start());
  }
  cudaGraphExecDestroy(launched);
  cudaGraphDestroy(graph);
}

BOOST_AUTO_TEST_CASE(a_capture_that_needs_more_scratch_memory_is_refused_and_plain_sums_continue) {
  if (world().size() == 1) return;  // no partial sums
  OnGpu gpu(true);
  Sum sum(gpu.transport(), gpu.stream(), 10'000, 7), smaller(gpu.transport(), gpu.stream(), 100, 8);
  smaller.check(smaller.start());  // so that the plan of the shards is there
  begin_capture(gpu.stream());
  BOOST_CHECK_EXCEPTION(sum.start(), Error, mentions("before the capture"));
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(gpu.stream(), &graph) == cudaSuccess) cudaGraphDestroy(graph);
  cudaGetLastError();
  sum.check(sum.start());
}

BOOST_AUTO_TEST_CASE(the_parts_of_a_split_sum_on_their_own) {
  const auto half = world().split(world().rank() % 2, -world().rank());
  OnGpu gpu(true, *half);
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
    sum.flat_buffer.upload();
    sum.ranks.order_after(sum.start());
    sum.flat_buffer.download();
    if (leaves) throw std::runtime_error("this rank leaves");
    constexpr double longest_ms = 120e3;  // NCCL's to notice that a socket has closed, peer by peer
    const comm::Work work = sum.start();
    const Stopwatch watch;
    for (Backoff backoff(true); !sum.ranks.done(work) && watch.elapsed_ms() < longest_ms;) backoff.pause();
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
