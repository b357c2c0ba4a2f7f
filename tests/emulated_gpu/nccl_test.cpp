// What fails inside NCCL, which a GPU does not do when asked to, when a call is taken up, and which calls a
// collective is made of.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <memory>
#include <string>
#include <thread>

#include "comm/nccl/on_gpu.h"
#include "comm/sums.h"
#include "emulated_gpu/holders.h"
#include "emulated_gpu/nccl.h"
#include "emulated_gpu/runtime.h"
#include "lockstep/base/error.h"
#include "support/ranks.h"
#include "support/world.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(nccl_test, *ranks(1, 2, 3, 4))

using emulated_gpu::faults;
using emulated_gpu::nccl;

std::unique_ptr<comm::GradientTransport> make(double timeout_s) {
  return comm::make_nccl_transport(world(), {.share_gpu = true, .timeout_s = timeout_s});
}

auto says(const std::string& text) {
  return [text](const FailureError& error) {
    BOOST_TEST_INFO(error.what());
    return std::string(error.what()).find(text) != std::string::npos;
  };
}

BOOST_AUTO_TEST_CASE(a_start_that_fails_on_one_rank_fails_on_all_and_is_taken_for_a_start_on_none) {
  if (world().size() == 1) return;
  const auto ranks = make(0.2);
  const int before = nccl().aborted;
  nccl().start_breaks = world().rank() + 1 == world().size();
  BOOST_CHECK_EXCEPTION(ranks->allocate_buffer(64, 1), FailureError,
                        says("have not joined it for 0.1 s"));  // half of what a watchdog would give
  nccl().start_breaks = false;
  BOOST_TEST(nccl().aborted == before + 1);
  BOOST_CHECK_EXCEPTION(ranks->allocate_buffer(64, 1), FailureError, [](const FailureError& error) {
    return std::string(error.what()).find("failed before") != std::string::npos;
  });
}

BOOST_AUTO_TEST_CASE(memory_is_said_to_lack_only_where_it_does) {
  const auto ranks = make(10);
  const auto refused = [&](const std::string& text) {
    BOOST_CHECK_EXCEPTION(ranks->allocate_buffer(64, 1), FailureError, says(text));
  };
  if (world().size() == 1) {
    faults().memory = cudaErrorMemoryAllocation;
    refused("the GPU is out of memory");
    faults().memory = cudaErrorDevicesUnavailable;
    refused("cudaMalloc failed on rank 0");
    faults().memory = cudaSuccess;
  } else {
    const int before = nccl().memories;
    nccl().memory_breaks = world().rank() + 1 == world().size();
    refused("ncclMemAlloc of");
    faults().free_bytes = 64;
    refused("the GPU is out of memory");
    nccl().memory_breaks = false;
    BOOST_TEST(nccl().memories == before);  // of those that had it, too
    faults().free_bytes = std::size_t{1} << 40;
  }
  ranks->allocate_buffer(64, 1);  // it is as good as before
}

BOOST_AUTO_TEST_CASE(a_duplicate_that_cannot_be_made_on_one_rank_is_made_on_none) {
  const auto ranks = make(10);
  if (world().rank() + 1 == world().size()) faults().streams = cudaErrorDevicesUnavailable;
  BOOST_CHECK_EXCEPTION(ranks->duplicate(), FailureError, says("cudaStreamCreate failed on rank"));
  faults().streams = cudaSuccess;
  cudaGetLastError();  // or the next launch takes it for its own
  ranks->duplicate();
}

BOOST_AUTO_TEST_CASE(a_flat_buffer_that_cannot_be_registered_leaves_no_memory_behind) {
  if (world().size() == 1) return;
  const auto ranks = make(10);
  const int before = nccl().memories;
  nccl().register_breaks = true;
  BOOST_CHECK_THROW(ranks->allocate_buffer(64, 1), FailureError);
  nccl().register_breaks = false;
  BOOST_TEST(nccl().memories == before);
}

BOOST_AUTO_TEST_CASE(a_flat_buffer_that_is_left_keeps_its_memory_and_not_the_connection) {
  if (world().size() == 1) return;
  const int aborted = nccl().aborted, memories = nccl().memories;
  try {
    const auto ranks = make(10);
    auto flat_buffer = ranks->allocate_buffer(64, 1);
    BOOST_TEST(flat_buffer->abandon());
    throw FailureError("a step has failed");
  } catch (const FailureError&) {
  }
  BOOST_TEST(nccl().aborted == aborted + 1);
  BOOST_TEST(nccl().memories == memories + 1);
}

BOOST_AUTO_TEST_CASE(it_ends_although_a_thread_that_asks_for_errors_gets_no_answer) {
  if (world().size() == 1) return;
  auto ranks = make(0.2);
  ranks->allocate_buffer(64, 1).reset();
  world().barrier();
  nccl().silent = true;
  std::thread asks([&, communicator = ranks.get()] { communicator->async_error(); });
  while (nccl().asked == 0) std::this_thread::yield();
  ranks.reset();
  BOOST_TEST(nccl().silent);  // nobody has waited for the answer
  nccl().silent = false;
  asks.join();
}

/// A communicator of NCCL's, whose calls are taken up when a test says so.
struct Communicator {
  Communicator() {
    connection.start();
    connection.make("its handle", [&](ncclComm_t comm) {
      raw = comm;
      return ncclSuccess;
    });
  }
  /// Of one float.
  ncclResult_t sum(const DeviceMemory& memory, cudaStream_t stream) const {
    return comm::ncclAllReduce(memory.first, memory.first, 1, ncclFloat32, ncclSum, raw, stream);
  }
  ncclResult_t look() const {
    ncclResult_t state = ncclSuccess;
    BOOST_TEST(comm::ncclCommGetAsyncError(raw, &state) == ncclSuccess);
    return state;
  }
  ncclResult_t take_up() const {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) state = look();
    return state;
  }

  comm::NcclConnection connection{world(), 10};
  ncclComm_t raw = nullptr;
};

void write_one(const DeviceMemory& memory, cudaStream_t stream) {
  const float one = 1;
  cudaMemcpyAsync(memory.first, &one, sizeof one, cudaMemcpyHostToDevice, stream);
}

BOOST_AUTO_TEST_CASE(what_is_asked_before_a_call_is_taken_up_is_not_behind_it) {
  if (world().size() == 1) return;
  const Communicator nccl;
  const Stream stream;
  const DeviceMemory memory(1);
  const Event before;
  write_one(memory, stream);
  BOOST_REQUIRE(nccl.sum(memory, stream) == ncclInProgress);
  std::thread([&] { BOOST_TEST(nccl.look() == ncclInProgress); }).join();  // another thread's look is none
  cudaEventRecord(before, stream);
  BOOST_TEST(cudaEventSynchronize(before) == cudaSuccess);
  BOOST_TEST(memory.read(stream)[0] == 1);
  BOOST_TEST(nccl.take_up() == ncclSuccess);
  BOOST_TEST(memory.read(stream)[0] == static_cast<float>(world().size()));
}

BOOST_AUTO_TEST_CASE(a_call_that_its_capture_does_not_wait_for_fails) {
  if (world().size() == 1) return;
  const Communicator nccl;
  const Stream stream;
  const DeviceMemory memory(1);
  cudaGraph_t graph = nullptr;
  BOOST_REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  BOOST_REQUIRE(nccl.sum(memory, stream) == ncclInProgress);
  BOOST_REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  BOOST_TEST(nccl.take_up() == ncclUnhandledCudaError);
  cudaGraphDestroy(graph);
}

BOOST_AUTO_TEST_CASE(a_communicator_takes_streams_of_its_device_only) {
  if (world().size() == 1) return;
  const Communicator nccl;
  const DeviceMemory memory(1);
  const emulated_gpu::WithDevice second(1);
  const Stream stream;
  BOOST_TEST(nccl.sum(memory, stream) == ncclUnhandledCudaError);
}

/// A reduce-scatter of a shard a rank and an all-gather, whose calls are noted.
std::string calls_of(const comm::Slices& slices, bool reproducible) {
  OnGpu gpu(reproducible);
  comm::GradientTransport& ranks = gpu.transport();
  const int size = world().size();
  const comm::ShardMap map(size, size);
  const auto bytes = static_cast<std::size_t>(slices.count()) * sizeof(float);
  MirroredBuffer flat_buffer(ranks, gpu.stream(), bytes, 1);
  const auto sums = make_case<float>(flat_buffer.here, 0, slices.count(), size, 3);
  sums.fill(map, world().rank());
  flat_buffer.upload();
  comm::TreeSum sum = sums.sum;
  sum.flat_buffer = flat_buffer.there.get();
  nccl().noted.clear();
  nccl().noting = true;
  ranks.order_after(ranks.start_reduce_scatter(sum, map, slices));
  ranks.order_after(ranks.start_all_gather(sum, slices));
  nccl().noting = false;
  flat_buffer.download();
  for (std::int64_t i = 0; i < slices.count(); ++i) {
    const float found = sums.elements(0)[i], wanted = serial_sum<float>(3, {0, size}, i);
    BOOST_TEST_REQUIRE(std::abs(found - wanted) <= (reproducible ? 0 : 1e-2f), "element " << i);
  }
  return nccl().noted;
}

BOOST_AUTO_TEST_CASE(even_slices_take_one_collective_call_and_another_for_a_rest) {
  const int ranks = world().size();
  const bool alone = ranks == 1;  // makes no call
  for (const bool rest : {false, true}) {
    const std::int64_t count = 64 * ranks + (rest ? 8 : 0);
    std::vector<std::vector<comm::ElementRange>> ranges;
    for (int rank = 0; rank < ranks; ++rank)
      ranges.push_back({{64 * rank, rank + 1 == ranks ? count - 64 * rank : 64}});
    const std::string calls =
        rest ? "reduce_scatter reduce | all_gather broadcast | " : "reduce_scatter | all_gather | ";
    BOOST_TEST(calls_of(comm::Slices(count, ranges), false) == (alone ? "" : calls));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
