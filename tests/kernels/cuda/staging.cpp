// What orders memory, copies and batches on a GPU, on an emulated one that does its work as late as CUDA
// allows.

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <numeric>
#include <vector>

#include "emulated_gpu/streams.h"
#include "kernels/cuda/memory.h"
#include "lockstep/base/error.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(staging)

std::vector<int> numbers(std::size_t count, int first) {
  std::vector<int> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

/// Computes with what is there: notes the first number when the stream comes to it.
void note_first(cudaStream_t stream, const void* memory, std::vector<int>& noted) {
  emulated_gpu::enqueue(stream, [memory, &noted] {
    noted.push_back(0);
    std::memcpy(&noted.back(), memory, sizeof(int));
  });
}

using Copy = kernels::Download::Copy;

constexpr std::size_t chunk = (std::size_t{4} << 20) / sizeof(int);  // numbers of a pinned chunk

BOOST_AUTO_TEST_CASE(what_is_uploaded_is_what_was_there_at_the_call) {
  kernels::StreamPool pool(0);
  kernels::Upload upload(0, pool.stream());
  kernels::Download download(0, pool.stream());
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, chunk, 9 * chunk + 5}) {
    const StorageRef there = pool.allocate(count * sizeof(int));
    std::vector<int> from = numbers(count, 7), back(count);
    upload.copy(from.data(), there->data, count * sizeof(int));
    std::fill(from.begin(), from.end(), -1);
    const Copy all{there->data, back.data(), count * sizeof(int)};
    download.copy({&all, 1});
    BOOST_TEST((back == numbers(count, 7)), count << " numbers");
  }
}

BOOST_AUTO_TEST_CASE(uploads_that_nobody_waits_for_arrive_each_with_its_own_values) {
  kernels::StreamPool pool(0);
  kernels::Upload upload(0, pool.stream());
  const StorageRef there = pool.allocate(sizeof(int));
  std::vector<int> noted;
  for (int value = 0; value < 20; ++value) {
    upload.copy(&value, there->data, sizeof value);
    note_first(pool.stream(), there->data, noted);
  }
  cudaStreamSynchronize(pool.stream());
  BOOST_TEST((noted == numbers(20, 0)));
}

BOOST_AUTO_TEST_CASE(an_upload_that_goes_lets_its_last_copies_end_first) {
  kernels::StreamPool pool(0);
  const StorageRef there = pool.allocate(sizeof(int));
  const int five = 5;
  {
    kernels::Upload upload(0, pool.stream());
    upload.copy(&five, there->data, sizeof five);
  }
  std::vector<int> noted;
  note_first(pool.stream(), there->data, noted);
  cudaStreamSynchronize(pool.stream());
  BOOST_TEST((noted == std::vector{5}));
}

BOOST_AUTO_TEST_CASE(a_download_brings_all_its_parts) {
  kernels::StreamPool pool(0);
  kernels::Upload upload(0, pool.stream());
  kernels::Download download(0, pool.stream());
  const StorageRef values = pool.allocate(3 * chunk * sizeof(int)), other = pool.allocate(sizeof(int));
  const std::vector<int> sent = numbers(3 * chunk, 1);
  const int five = 5;
  upload.copy(sent.data(), values->data, sent.size() * sizeof(int));
  upload.copy(&five, other->data, sizeof five);
  for (const std::size_t count : {std::size_t{0}, std::size_t{3}, 3 * chunk}) {
    std::vector<int> back(count);
    int before = 0, behind = 0;
    const Copy copies[] = {{other->data, &before, sizeof before},
                           {values->data, back.data(), count * sizeof(int)},
                           {other->data, &behind, sizeof behind}};
    download.copy(copies);
    BOOST_TEST(before == 5);
    BOOST_TEST(behind == 5);
    BOOST_TEST(std::equal(back.begin(), back.end(), sent.begin()));
  }
}

BOOST_AUTO_TEST_CASE(work_asked_for_before_a_block_is_released_still_has_it) {
  kernels::StreamPool pool(0);
  kernels::Upload upload(0, pool.stream());
  std::vector<int> noted;
  std::size_t reserved_bytes = 0;
  for (int value = 0; value < 10; ++value) {
    const StorageRef block = pool.allocate(1 << 20);
    upload.copy(&value, block->data, sizeof value);
    note_first(pool.stream(), block->data, noted);
    if (value == 0) reserved_bytes = pool.reserved_bytes();
  }
  cudaStreamSynchronize(pool.stream());
  BOOST_TEST((noted == numbers(10, 0)));
  BOOST_TEST(pool.reserved_bytes() == reserved_bytes);
}

BOOST_AUTO_TEST_CASE(a_block_may_outlive_its_pool) {
  StorageRef block;
  {
    kernels::StreamPool pool(0);
    block = pool.allocate(64);
    cudaMemsetAsync(block->data, 0, 64, pool.stream());
  }
  block = {};
  BOOST_TEST(cudaGetLastError() == cudaSuccess);
}

BOOST_AUTO_TEST_CASE(more_memory_than_there_is_fails_and_leaves_the_pool_as_it_was) {
  kernels::StreamPool pool(0);
  BOOST_CHECK_THROW(pool.allocate(std::size_t{1} << 50), FailureError);
  BOOST_TEST(cudaGetLastError() == cudaSuccess);
  pool.allocate(64);
}

BOOST_AUTO_TEST_CASE(each_step_computes_with_its_own_batch) {
  constexpr int steps = 12;
  kernels::StreamPool pool(0);
  const auto queue = kernels::make_staging_queue(0, pool);
  const kernels::StagedTensor staged = queue->allocate(Shape{16}, DType::int32);
  std::vector<int> noted;
  for (int step = 0; step < steps; ++step) {
    queue->begin_fill();
    *static_cast<int*>(staged.host.raw()) = step;
    queue->send({&staged, 1});
    queue->receive();
    note_first(pool.stream(), staged.device.raw(), noted);
    queue->release();
  }
  cudaStreamSynchronize(pool.stream());
  BOOST_TEST((noted == numbers(steps, 0)));
}

BOOST_AUTO_TEST_CASE(a_staged_tensor_is_zeroed_before_the_first_batch_comes) {
  kernels::StreamPool pool(0);
  const auto queue = kernels::make_staging_queue(0, pool);
  const kernels::StagedTensor staged = queue->allocate(Shape{16}, DType::int32);
  std::vector<int> noted;
  BOOST_TEST(*static_cast<int*>(staged.host.raw()) == 0);
  note_first(pool.stream(), staged.device.raw(), noted);
  queue->release();
  queue->begin_fill();
  *static_cast<int*>(staged.host.raw()) = 3;
  queue->send({&staged, 1});
  queue->receive();
  note_first(pool.stream(), staged.device.raw(), noted);
  cudaStreamSynchronize(pool.stream());
  BOOST_TEST((noted == std::vector{0, 3}));
}

BOOST_AUTO_TEST_CASE(a_queue_that_goes_lets_its_last_copy_end_first) {
  kernels::StreamPool pool(0);
  std::vector<int> noted;
  {
    const auto queue = kernels::make_staging_queue(0, pool);
    const kernels::StagedTensor staged = queue->allocate(Shape{16}, DType::int32);
    queue->begin_fill();
    *static_cast<int*>(staged.host.raw()) = 9;
    queue->send({&staged, 1});
    queue->receive();
    note_first(pool.stream(), staged.device.raw(), noted);
  }
  cudaStreamSynchronize(pool.stream());
  BOOST_TEST((noted == std::vector{9}));
}

BOOST_AUTO_TEST_CASE(a_timer_says_how_long_the_stream_took) {
  kernels::StreamPool pool(0);
  const auto timer = kernels::make_event_timer(0, pool.stream());
  timer->mark(0);
  timer->mark(1);
  cudaStreamSynchronize(pool.stream());
  BOOST_TEST(timer->elapsed_ms(0, 1) >= 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
