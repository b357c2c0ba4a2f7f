// The part of CUB that kernels use, on the CPU: a stable sort by the bits of keys.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "emulated_gpu/counting.h"
#include "emulated_gpu/streams.h"

namespace cub {

struct DeviceRadixSort {
  template <class Key, class Value>
  static cudaError_t SortPairs(void* room, std::size_t& room_bytes, const Key* keys, Key* sorted_keys,
                               const Value* values, Value* sorted_values, std::int64_t count,
                               int first_bit = 0, int end_bit = 8 * static_cast<int>(sizeof(Key)),
                               cudaStream_t stream = nullptr) {
    const std::size_t needed_bytes = 256 + static_cast<std::size_t>(count);
    if (!room) {
      room_bytes = needed_bytes;
      return cudaSuccess;
    }
    if (room_bytes < needed_bytes) return cudaErrorInvalidValue;
    lockstep::emulated_gpu::enqueue(stream, [=] {
      if (auto& counting = lockstep::emulated_gpu::counting(); counting.on())
        counting.call("cub::DeviceRadixSort::SortPairs",
                      2 * static_cast<std::size_t>(count) * (sizeof *keys + sizeof *values));
      std::fill_n(static_cast<char*>(room), needed_bytes, '\xab');  // it is written to
      const auto bits_of = [=](std::int64_t i) {
        const auto bits = static_cast<std::uint64_t>(keys[i]);
        return bits >> first_bit & ((std::uint64_t{1} << (end_bit - first_bit)) - 1);
      };
      std::vector<std::int64_t> order(static_cast<std::size_t>(count));
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
      std::ranges::stable_sort(order, {}, bits_of);
      for (std::size_t i = 0; i < order.size(); ++i) {
        sorted_keys[i] = keys[order[i]];
        sorted_values[i] = values[order[i]];
      }
    });
    return cudaSuccess;
  }
};

}  // namespace cub
