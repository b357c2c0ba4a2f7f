// The emulated CUDA runtime captures streams: what is asked of them is done by each launch of the graph, in
// the order of its branches, and what a capture forbids is refused as CUDA's documentation says.
#include <array>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <thread>

#include "emulated_gpu/holders.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(capture_test)

void begin(cudaStream_t stream) {
  BOOST_REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
}

cudaError_t end(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  BOOST_TEST((graph != nullptr) == (ended == cudaSuccess));
  if (graph) cudaGraphDestroy(graph);
  cudaGetLastError();
  return ended;
}

/// Of what was captured since begin().
struct Graph {
  explicit Graph(cudaStream_t stream) {
    cudaGraph_t graph = nullptr;
    BOOST_REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    BOOST_REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    BOOST_REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  }
  ~Graph() { cudaGraphExecDestroy(exec); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(cudaStream_t stream) { BOOST_REQUIRE(cudaGraphLaunch(exec, stream) == cudaSuccess); }
  cudaGraphExec_t exec = nullptr;
};

/// What `call` ends with, and that nothing comes of a capture in which it was made.
template <class Call>
void check_spoils(cudaError_t wanted, const Call& call) {
  const Stream stream;
  begin(stream);
  BOOST_TEST(last_error_of(call(stream)) == wanted);
  cudaStreamCaptureStatus status{};
  BOOST_TEST(cudaStreamIsCapturing(stream, &status) == cudaSuccess);
  BOOST_TEST(status == cudaStreamCaptureStatusInvalidated);
  BOOST_TEST(end(stream) == cudaErrorStreamCaptureInvalidated);
}

BOOST_AUTO_TEST_CASE(captured_work_is_done_by_each_launch_and_not_before) {
  Notes notes;
  const Stream stream;
  begin(stream);
  for (int i = 0; i < 3; ++i) notes.ask(stream, i);
  Graph graph(stream);
  cudaStreamSynchronize(stream);
  BOOST_TEST(notes.done.empty());
  notes.ask(stream, 7);
  graph.launch(stream);
  graph.launch(stream);
  BOOST_TEST(notes.done.empty());
  cudaStreamSynchronize(stream);
  BOOST_TEST((notes.done == std::vector{7, 0, 1, 2, 0, 1, 2}));
}

BOOST_AUTO_TEST_CASE(a_stream_that_waits_for_an_event_of_the_capture_is_a_branch_of_it) {
  Notes notes;
  const Stream stream, beside;
  const Event fork, join;
  begin(stream);
  notes.ask(stream, 1);
  cudaEventRecord(fork, stream);
  cudaStreamWaitEvent(beside, fork, 0);
  notes.ask(beside, 2);
  cudaEventRecord(join, beside);
  cudaStreamWaitEvent(stream, join, 0);
  notes.ask(stream, 3);
  Graph graph(stream);
  notes.ask(beside, 9);  // captured no longer
  for (int launches = 0; launches < 2; ++launches) graph.launch(stream);
  cudaStreamSynchronize(stream);
  BOOST_TEST((notes.done == std::vector{1, 2, 3, 1, 2, 3}));
  cudaStreamSynchronize(beside);
  BOOST_TEST(notes.done.back() == 9);
}

BOOST_AUTO_TEST_CASE(a_branch_that_does_not_come_back_is_refused) {
  Notes notes;
  const Stream stream, beside;
  const Event fork, join;
  begin(stream);
  cudaEventRecord(fork, stream);
  cudaStreamWaitEvent(beside, fork, 0);
  cudaEventRecord(join, beside);
  notes.ask(beside, 1);  // behind what is waited for
  cudaStreamWaitEvent(stream, join, 0);
  BOOST_TEST(end(stream) == cudaErrorStreamCaptureUnjoined);
}

BOOST_AUTO_TEST_CASE(what_a_graph_cannot_hold_spoils_a_capture) {
  const Stream other;
  const Event event;
  const DeviceMemory device(1);
  float pageable = 1;
  void* memory = nullptr;
  cudaEventRecord(event, other);
  const auto unsupported = cudaErrorStreamCaptureUnsupported;
  check_spoils(unsupported, [](cudaStream_t stream) { return cudaStreamSynchronize(stream); });
  check_spoils(unsupported, [](cudaStream_t stream) { return cudaStreamQuery(stream); });
  check_spoils(unsupported, [&](cudaStream_t) { return cudaStreamSynchronize(other); });
  check_spoils(unsupported, [&](cudaStream_t) { return cudaEventSynchronize(event); });
  check_spoils(unsupported, [&](cudaStream_t) { return cudaEventQuery(event); });
  check_spoils(unsupported, [&](cudaStream_t) { return cudaMalloc(&memory, 8); });
  check_spoils(unsupported, [&](cudaStream_t) { return cudaMallocHost(&memory, 8); });
  check_spoils(unsupported, [&](cudaStream_t) { return cudaFree(memory); });
  check_spoils(unsupported, [&](cudaStream_t stream) {
    return cudaMemcpyAsync(device.first, &pageable, sizeof(float), cudaMemcpyHostToDevice, stream);
  });
  check_spoils(unsupported, [&](cudaStream_t stream) {
    return cudaMemcpyAsync(&pageable, device.first, sizeof(float), cudaMemcpyDeviceToHost, stream);
  });
  check_spoils(cudaErrorStreamCaptureIsolation,
               [&](cudaStream_t stream) { return cudaStreamWaitEvent(stream, event, 0); });
}

BOOST_AUTO_TEST_CASE(pinned_memory_is_read_at_each_launch) {
  const Stream stream;
  const DeviceMemory device(1);
  const PinnedMemory pinned(1);
  begin(stream);
  cudaMemcpyAsync(device.first, pinned.first, sizeof(float), cudaMemcpyHostToDevice, stream);
  Graph graph(stream);
  for (const float value : {1.0f, 2.0f}) {
    *pinned.first = value;
    graph.launch(stream);
    BOOST_TEST(device.read(stream)[0] == value);
  }
}

BOOST_AUTO_TEST_CASE(memory_of_a_graph_is_there_between_its_nodes_and_no_longer) {
  const Stream stream;
  float* memory = nullptr;
  std::vector<float> before(64), within(64), after(64);
  begin(stream);
  BOOST_TEST(cudaMallocAsync(reinterpret_cast<void**>(&memory), 256, stream) == cudaSuccess);
  emulated_gpu::enqueue(stream, [&, memory] { std::copy_n(memory, 64, before.data()); });
  BOOST_TEST(cudaMemsetAsync(memory, 0, 256, stream) == cudaSuccess);
  emulated_gpu::enqueue(stream, [&, memory] { std::copy_n(memory, 64, within.data()); });
  BOOST_TEST(cudaFreeAsync(memory, stream) == cudaSuccess);
  emulated_gpu::enqueue(stream, [&, memory] { std::copy_n(memory, 64, after.data()); });  // too late
  Graph graph(stream);
  for (int launches = 0; launches < 2; ++launches) {
    graph.launch(stream);
    cudaStreamSynchronize(stream);
    BOOST_TEST(all_nan(before));
    BOOST_TEST(within == std::vector<float>(64));
    BOOST_TEST(all_nan(after));
  }
  BOOST_TEST(last_error_of(cudaFreeAsync(memory, stream)) == cudaErrorInvalidValue);
}

BOOST_AUTO_TEST_CASE(a_capture_frees_only_what_it_has_allocated) {
  const Stream stream;
  void* outside = nullptr;
  cudaMallocAsync(&outside, 8, stream);
  begin(stream);
  BOOST_TEST(last_error_of(cudaFreeAsync(outside, stream)) == cudaErrorInvalidValue);
  BOOST_TEST(end(stream) == cudaSuccess);
  BOOST_TEST(cudaFreeAsync(outside, stream) == cudaSuccess);
}

BOOST_AUTO_TEST_CASE(an_event_of_a_capture_is_not_looked_at_and_one_recorded_for_outside_is) {
  const Stream stream;
  const Event inside(cudaEventDefault), start(cudaEventDefault), finish(cudaEventDefault);
  BOOST_TEST(last_error_of(cudaEventRecordWithFlags(start, stream, cudaEventRecordExternal)) ==
             cudaErrorInvalidValue);
  cudaEventRecord(start, stream);
  begin(stream);
  cudaEventRecord(inside, stream);
  BOOST_TEST(cudaEventRecordWithFlags(finish, stream, cudaEventRecordExternal) == cudaSuccess);
  Graph graph(stream);
  graph.launch(stream);
  cudaStreamSynchronize(stream);
  float ms = -1;
  BOOST_TEST(last_error_of(cudaEventQuery(inside)) == cudaErrorCapturedEvent);
  BOOST_TEST(last_error_of(cudaEventElapsedTime(&ms, start, inside)) == cudaErrorInvalidResourceHandle);
  BOOST_TEST(cudaEventElapsedTime(&ms, start, finish) == cudaSuccess);
  BOOST_TEST(ms >= 0);
  cudaEventRecord(inside, stream);  // as good as any again
  BOOST_TEST(cudaEventSynchronize(inside) == cudaSuccess);
}

BOOST_AUTO_TEST_CASE(other_threads_are_not_held_to_the_rules) {
  const Stream stream, other;
  begin(stream);
  std::thread([&] {
    void* memory = nullptr;
    BOOST_TEST(cudaMalloc(&memory, 8) == cudaSuccess);
    BOOST_TEST(cudaStreamSynchronize(other) == cudaSuccess);
    BOOST_TEST(cudaFree(memory) == cudaSuccess);
    BOOST_TEST(end(stream) == cudaErrorStreamCaptureWrongThread);
  }).join();
  BOOST_TEST(end(stream) == cudaSuccess);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
