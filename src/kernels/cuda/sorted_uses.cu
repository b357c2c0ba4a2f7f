#include "kernels/cuda/sorted_uses.h"

#include <cub/device/device_radix_sort.cuh>

#include <limits>

#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/error.h"

namespace lockstep::kernels {

SortedUses::SortedUses(CudaBackend& gpu, const char* operation, std::int64_t uses, std::int64_t rows)
    : gpu_(gpu), uses_(uses), run_(ceil_div(uses, 64) * 64) {  // 256 bytes
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max() - 1;
  if (std::max(uses, rows) > most)
    throw UsageError("{} on a GPU: {} indices into {} rows are too many; at most {} are built", operation,
                     uses, rows, most);
  while ((std::int64_t{1} << bits_) <= rows) ++bits_;  // `rows` itself is a key, too
  if (uses == 0) return;
  sort();  // without room it says how much it needs
  room_ = gpu.scratch(4 * run_ + ceil_div(static_cast<std::int64_t>(sort_bytes_), 4), DType::int32);
}

void SortedUses::sort() {
  std::int32_t* const from = room_ ? rows() : nullptr;
  std::int32_t* const to = from ? from + 2 * run_ : nullptr;
  check(cub::DeviceRadixSort::SortPairs(from ? to + 2 * run_ : nullptr, sort_bytes_, from, to,
                                        from ? from + run_ : nullptr, from ? to + run_ : nullptr, uses_, 0,
                                        bits_, gpu_.launch().stream),
        "cub::DeviceRadixSort", gpu_.device().index);
}

}  // namespace lockstep::kernels
