#include "lockstep/tensor/tensor.h"

#include <boost/test/unit_test.hpp>

namespace ls = lockstep;

BOOST_AUTO_TEST_CASE(rows_and_reshapes_share_memory) {
  const ls::Tensor tensor = ls::Tensor::zeros({4, 6});
  const ls::Tensor rows = tensor.rows(1, 3).reshape({12});
  rows.data<float>()[0] = 5;
  BOOST_TEST(tensor.data<float>()[6] == 5);
  BOOST_CHECK_THROW(tensor.rows(3, 5), ls::UsageError);
  BOOST_CHECK_THROW(tensor.reshape({5, 5}), ls::UsageError);
}

BOOST_AUTO_TEST_CASE(an_only_handle_has_no_copy_no_view_and_no_memory_of_others) {
  ls::Tensor tensor = ls::Tensor::zeros({4});
  BOOST_TEST(tensor.is_only_handle());
  {
    const ls::Tensor part = tensor.rows(1, 2);
    BOOST_TEST(!tensor.is_only_handle());
    BOOST_TEST(!part.is_only_handle());
  }
  BOOST_TEST(tensor.is_only_handle());
  BOOST_TEST(!ls::Tensor::view(tensor.raw(), {4}, ls::DType::float32).is_only_handle());
  BOOST_TEST(!ls::Tensor().is_only_handle());
}

BOOST_AUTO_TEST_CASE(reading_a_tensor_as_another_type_is_refused) {
  BOOST_CHECK_THROW(ls::Tensor::zeros({2}).data<double>(), ls::UsageError);
}

BOOST_AUTO_TEST_CASE(channel_blocks_count_their_padding_lanes) {
  ls::MemoryPool pool;
  const ls::Tensor tensor =
      ls::Tensor::over(pool.allocate(2 * 16 * 9 * 4), {2, 10, 3, 3}, ls::DType::float32, 8);
  BOOST_TEST(tensor.numel() == 180);
  BOOST_TEST(tensor.stored_numel() == 288);
}

BOOST_AUTO_TEST_CASE(a_pool_hands_out_released_blocks_again) {
  ls::MemoryPool pool;
  void* first = pool.allocate(1000)->data;
  BOOST_TEST(pool.allocate(1000)->data == first);
  BOOST_TEST(pool.reserved_bytes() == 1024u);
}

BOOST_AUTO_TEST_CASE(a_pool_whose_requests_grow_gives_back_what_it_no_longer_needs) {
  constexpr std::size_t mib = 1 << 20, kib = 1 << 10;
  ls::MemoryPool pool;
  std::size_t most = 0;
  for (std::size_t bytes = mib; bytes < 40 * mib; bytes += 64 * kib) {
    const ls::StorageRef a = pool.allocate(bytes), b = pool.allocate(bytes);
    most = std::max(most, pool.reserved_bytes());
  }
  BOOST_TEST(most <= 2 * 2 * 40 * mib);
}

BOOST_AUTO_TEST_CASE(a_pool_whose_requests_repeat_gives_nothing_back) {
  constexpr std::size_t mib = 1 << 20;
  ls::MemoryPool pool;
  std::size_t reserved = 0;
  for (int step = 0; step < 5; ++step) {
    for (const std::size_t size : {5 * mib, 7 * mib, 8 * mib}) {  // of which few are in use at once
      const ls::StorageRef a = pool.allocate(size), b = pool.allocate(size), c = pool.allocate(3 * mib);
    }
    if (step > 1) BOOST_TEST(pool.reserved_bytes() == reserved);
    reserved = pool.reserved_bytes();
  }
}

BOOST_AUTO_TEST_CASE(blocks_may_outlive_their_pool) {
  ls::StorageRef block;
  {
    ls::MemoryPool pool;
    block = pool.allocate(64);
  }
  static_cast<char*>(block->data)[63] = 1;
}
