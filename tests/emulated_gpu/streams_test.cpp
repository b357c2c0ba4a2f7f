// The emulated CUDA runtime does what is asked of a stream in order, as late as it may, and shows what is
// used before it is there or after it has gone.
#include "emulated_gpu/streams.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <vector>

#include "emulated_gpu/holders.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(streams_test)

BOOST_AUTO_TEST_CASE(nothing_is_done_before_somebody_waits_and_then_all_of_it_in_order) {
  Notes notes;
  const Stream stream;
  for (int i = 0; i < 5; ++i) notes.ask(stream, i);
  BOOST_TEST(notes.done.empty());
  cudaStreamSynchronize(stream);
  BOOST_TEST((notes.done == std::vector{0, 1, 2, 3, 4}));
}

BOOST_AUTO_TEST_CASE(a_wait_is_for_the_record_there_was_when_it_was_asked) {
  Notes notes;
  const Stream first, second;
  const Event event;
  cudaStreamWaitEvent(second, event, 0);  // never recorded: for nothing
  notes.ask(first, 1);
  cudaEventRecord(event, first);
  cudaStreamWaitEvent(second, event, 0);
  notes.ask(first, 2);
  cudaEventRecord(event, first);
  notes.ask(second, 3);
  cudaStreamSynchronize(second);
  BOOST_TEST((notes.done == std::vector{1, 3}));
  cudaEventSynchronize(event);
  BOOST_TEST((notes.done == std::vector{1, 3, 2}));
}

BOOST_AUTO_TEST_CASE(a_stream_that_is_destroyed_does_its_work_all_the_same) {
  Notes notes;
  const Event event;
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  notes.ask(stream, 1);
  cudaEventRecord(event, stream);
  cudaStreamDestroy(stream);
  BOOST_TEST(notes.done.empty());
  BOOST_TEST(last_error_of(cudaStreamSynchronize(stream)) == cudaErrorInvalidResourceHandle);
  cudaEventSynchronize(event);
  BOOST_TEST(notes.done.size() == 1u);
}

BOOST_AUTO_TEST_CASE(memory_is_there_and_gone_in_the_order_of_its_stream) {
  const Stream stream;
  float* memory = nullptr;
  const std::vector<float> ones(64, 1.0f);
  std::vector<float> unwritten(64), before(64), after(64);
  cudaMallocAsync(reinterpret_cast<void**>(&memory), 256, stream);
  emulated_gpu::enqueue(stream, [&] { std::copy_n(memory, 64, unwritten.data()); });
  cudaMemcpyAsync(memory, ones.data(), 256, cudaMemcpyHostToDevice, stream);
  emulated_gpu::enqueue(stream, [&] { std::copy_n(memory, 64, before.data()); });
  cudaFreeAsync(memory, stream);
  emulated_gpu::enqueue(stream, [&] { std::copy_n(memory, 64, after.data()); });  // too late
  cudaStreamSynchronize(stream);
  BOOST_TEST(all_nan(unwritten));
  BOOST_TEST(before == ones);
  BOOST_TEST(all_nan(after));
}

BOOST_AUTO_TEST_CASE(freed_memory_is_not_handed_out_again_at_once) {
  const Stream stream;
  void *first = nullptr, *second = nullptr;
  cudaMallocAsync(&first, 256, stream);
  cudaFreeAsync(first, stream);
  cudaStreamSynchronize(stream);
  cudaMallocAsync(&second, 256, stream);
  BOOST_TEST(first != second);
  cudaFree(second);
}

BOOST_AUTO_TEST_CASE(
    copies_of_pageable_memory_are_made_at_the_call_and_those_of_pinned_memory_in_the_stream) {
  const Stream stream;
  const DeviceMemory of_pageable(1), of_pinned(1);
  const PinnedMemory pinned(1);
  float pageable = *pinned.first = 1;
  cudaMemcpyAsync(of_pageable.first, &pageable, sizeof(float), cudaMemcpyHostToDevice, stream);
  cudaMemcpyAsync(of_pinned.first, pinned.first, sizeof(float), cudaMemcpyHostToDevice, stream);
  pageable = *pinned.first = 2;
  BOOST_TEST(of_pageable.read(stream)[0] == 1.0f);
  BOOST_TEST(of_pinned.read(stream)[0] == 2.0f);
  cudaMemcpyAsync(pinned.first, of_pageable.first, sizeof(float), cudaMemcpyDeviceToHost, stream);
  BOOST_TEST(*pinned.first == 2.0f);
  cudaMemcpyAsync(&pageable, of_pageable.first, sizeof(float), cudaMemcpyDeviceToHost, stream);
  BOOST_TEST(pageable == 1.0f);
  BOOST_TEST(*pinned.first == 1.0f);
}

BOOST_AUTO_TEST_CASE(copies_that_leave_their_memory_are_refused) {
  const Stream stream;
  const DeviceMemory device(16);
  std::vector<float> values(64);
  const auto copy = [&](void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    return last_error_of(cudaMemcpyAsync(to, from, bytes, kind, stream));
  };
  BOOST_TEST(copy(device.first, values.data(), 65, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  BOOST_TEST(copy(device.first + 15, values.data(), 8, cudaMemcpyDefault) == cudaErrorInvalidValue);
  BOOST_TEST(copy(device.first, values.data(), 64, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  BOOST_TEST(copy(values.data(), values.data() + 8, 8, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  BOOST_TEST(last_error_of(cudaMemsetAsync(device.first, 0, 65, stream)) == cudaErrorInvalidValue);
  BOOST_TEST(last_error_of(cudaMemsetAsync(values.data(), 0, 64, stream)) == cudaErrorInvalidValue);
  void* freed = nullptr;
  cudaMallocAsync(&freed, 64, stream);
  cudaFreeAsync(freed, stream);
  BOOST_TEST(copy(freed, values.data(), 64, cudaMemcpyDefault) == cudaErrorInvalidValue);
  cudaStreamSynchronize(stream);
  BOOST_TEST(copy(freed, values.data(), 64, cudaMemcpyDefault) == cudaErrorInvalidValue);
}

BOOST_AUTO_TEST_CASE(memory_is_freed_once_and_by_the_call_for_its_kind) {
  const Stream stream;
  void *device = nullptr, *pinned = nullptr;
  int here = 0;
  cudaMalloc(&device, 8);
  cudaMallocHost(&pinned, 8);
  BOOST_TEST(last_error_of(cudaFree(pinned)) == cudaErrorInvalidValue);
  BOOST_TEST(last_error_of(cudaFreeHost(device)) == cudaErrorInvalidValue);
  BOOST_TEST(last_error_of(cudaFree(&here)) == cudaErrorInvalidValue);
  BOOST_TEST(cudaFree(nullptr) == cudaSuccess);
  BOOST_TEST(cudaFreeHost(pinned) == cudaSuccess);
  BOOST_TEST(cudaFreeAsync(device, stream) == cudaSuccess);
  BOOST_TEST(last_error_of(cudaFreeAsync(device, stream)) == cudaErrorInvalidValue);
  BOOST_TEST(last_error_of(cudaFree(device)) == cudaErrorInvalidValue);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
