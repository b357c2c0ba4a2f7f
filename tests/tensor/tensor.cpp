#include "lockstep/tensor/tensor.h"

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <random>
#include <thread>

#include "lockstep/tensor/storage.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(tensor)

BOOST_AUTO_TEST_CASE(images_with_channels_last_are_rows_of_positions) {
  const Tensor rows = Tensor::zeros({2, 6, 5}), images = rows.stored_as({2, 5, 2, 3}, 5);
  BOOST_TEST(images.channel_block() == 5);
  BOOST_TEST(images.raw() == rows.raw());
  BOOST_TEST((images.stored_as({2, 6, 5}).shape() == rows.shape()));
  BOOST_CHECK_THROW(rows.stored_as({2, 5, 2, 3}, 8), UsageError);  // it would have padding lanes
  BOOST_CHECK_THROW(rows.stored_as({2, 30}, 5), UsageError);
}

BOOST_AUTO_TEST_CASE(rows_and_reshapes_share_memory) {
  const Tensor tensor = Tensor::zeros({4, 6});
  const Tensor rows = tensor.rows(1, 3).reshape({12});
  rows.data<float>()[0] = 5;
  BOOST_TEST(tensor.data<float>()[6] == 5);
  BOOST_CHECK_THROW(tensor.rows(3, 5), UsageError);
  BOOST_CHECK_THROW(tensor.reshape({5, 5}), UsageError);
}

BOOST_AUTO_TEST_CASE(a_block_that_is_too_small_for_a_shape_is_refused) {
  BOOST_CHECK_THROW(Tensor::over(allocate_cpu(64), {17}, DType::float32), UsageError);
  BOOST_CHECK_THROW(Tensor::over(allocate_cpu(64), {1, 9, 2, 1}, DType::float32, 16), UsageError);
  BOOST_CHECK_NO_THROW(Tensor::over(allocate_cpu(64), {16}, DType::float32));
}

BOOST_AUTO_TEST_CASE(meta_tensors_have_shapes_and_no_memory_on_their_thread_only) {
  {
    const MetaTensors meta;
    const Tensor huge = Tensor::empty({1 << 20, 1 << 20}),
                 zeros = Tensor::zeros({1 << 20, 1 << 20}, DType::int64);
    BOOST_TEST(!huge);
    BOOST_TEST(!zeros);
    BOOST_TEST(huge.bytes() == std::size_t{1} << 42);
    bool elsewhere = false;
    std::thread([&] { elsewhere = static_cast<bool>(Tensor::empty({4})); }).join();
    BOOST_TEST(elsewhere);
  }
  BOOST_TEST(static_cast<bool>(Tensor::empty({4})));
}

BOOST_AUTO_TEST_CASE(an_only_handle_has_no_copy_no_view_and_no_memory_of_others) {
  Tensor tensor = Tensor::zeros({4});
  BOOST_TEST(tensor.is_only_handle());
  {
    const Tensor part = tensor.rows(1, 2);
    BOOST_TEST(!tensor.is_only_handle());
    BOOST_TEST(!part.is_only_handle());
  }
  BOOST_TEST(tensor.is_only_handle());
  BOOST_TEST(!Tensor::view(tensor.raw(), {4}, DType::float32).is_only_handle());
  BOOST_TEST(!Tensor().is_only_handle());
}

BOOST_AUTO_TEST_CASE(reading_a_tensor_as_another_type_is_refused) {
  BOOST_CHECK_THROW(Tensor::zeros({2}).data<double>(), UsageError);
}

BOOST_AUTO_TEST_CASE(channel_blocks_count_their_padding_lanes) {
  MemoryPool pool;
  const Tensor tensor = Tensor::over(pool.allocate(2 * 16 * 9 * 4), {2, 10, 3, 3}, DType::float32, 8);
  BOOST_TEST(tensor.numel() == 180);
  BOOST_TEST(tensor.stored_numel() == 288);
}

BOOST_AUTO_TEST_CASE(a_pool_hands_out_released_blocks_again) {
  MemoryPool pool;
  void* first = pool.allocate(1000)->data;
  BOOST_TEST(pool.allocate(1000)->data == first);
  BOOST_TEST(pool.reserved_bytes() == 1024u);
}

BOOST_AUTO_TEST_CASE(a_pool_of_batches_that_differ_in_size_holds_at_most_a_few_times_what_is_in_use) {
  const char* const given = std::getenv("LOCKSTEP_TEST_SEED");
  const std::uint64_t seed = given ? std::strtoull(given, nullptr, 10) : 1;
  BOOST_TEST_MESSAGE("LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  MemoryPool pool;
  std::size_t peak = 0, most = 0;
  for (int step = 0; step < 200; ++step) {
    const std::size_t nodes = 1000 + random() % 1000, edges = nodes + random() % (4 * nodes);
    std::vector<StorageRef> activations;
    std::size_t used = 0;
    for (std::size_t layer = 0; layer < 8; ++layer)
      for (const std::size_t bytes : {256 * nodes, 256 * edges, 16 * nodes, 16 * edges, 64 * edges}) {
        activations.push_back(pool.allocate(bytes));
        used += activations.back()->bytes;
      }
    peak = std::max(peak, used);
    most = std::max(most, pool.reserved_bytes());
  }
  BOOST_TEST(most <= 4 * peak);
}

BOOST_AUTO_TEST_CASE(a_pool_whose_requests_grow_gives_back_what_it_no_longer_needs) {
  constexpr std::size_t mib = 1 << 20, kib = 1 << 10;
  MemoryPool pool;
  std::size_t most = 0;
  for (std::size_t bytes = mib; bytes < 40 * mib; bytes += 64 * kib) {
    const StorageRef a = pool.allocate(bytes), b = pool.allocate(bytes);
    most = std::max(most, pool.reserved_bytes());
  }
  BOOST_TEST(most <= 2 * 2 * 40 * mib);
}

BOOST_AUTO_TEST_CASE(a_pool_whose_requests_repeat_gives_nothing_back) {
  constexpr std::size_t mib = 1 << 20;
  MemoryPool pool;
  std::size_t reserved = 0;
  for (int step = 0; step < 5; ++step) {
    for (const std::size_t size : {5 * mib, 7 * mib, 8 * mib}) {  // of which few are in use at once
      const StorageRef a = pool.allocate(size), b = pool.allocate(size), c = pool.allocate(3 * mib);
    }
    if (step > 1) BOOST_TEST(pool.reserved_bytes() == reserved);
    reserved = pool.reserved_bytes();
  }
}

BOOST_AUTO_TEST_CASE(blocks_may_outlive_their_pool) {
  StorageRef block;
  {
    MemoryPool pool;
    block = pool.allocate(64);
  }
  static_cast<char*>(block->data)[63] = 1;
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
