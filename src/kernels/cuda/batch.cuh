// Work on many tensors in one launch: the kernel's argument describes the tensors, and a block finds its
// tensor.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lockstep::kernels {

/// Entries that share a launch. Each has consecutive blocks of threads.
template <class Entry, int max_count>
struct Batch {
  static constexpr int room = max_count;
  int entries = 0;
  std::int64_t first_block[max_count + 1] = {};  // of each entry, and their end
  Entry entry[max_count] = {};

  /// Adds an entry, which the caller fills in. There must be room.
  Entry& add(std::int64_t blocks) {
    first_block[entries + 1] = first_block[entries] + blocks;
    return entry[entries++];
  }
  unsigned blocks() const { return static_cast<unsigned>(first_block[entries]); }
  /// The last entry whose first block is not after this one.
  __device__ int entry_of(std::int64_t number) const {
    int low = 0, high = entries - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first_block[middle] <= number) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

/// Whether a kernel may have such an argument: its arguments have at most 32 KiB in all.
template <class Argument>
inline constexpr bool fits = sizeof(Argument) <= 32 * 1024 - 512;

}  // namespace lockstep::kernels
