// Rows of a table by number, and their gradient, summed in the order of the indices: uses are sorted by row
// (stably), and a block sums one row's.
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/error.h"
#include "kernels/cuda/kernels.h"

namespace lockstep::kernels {
namespace {

constexpr int block = 256;

template <int Width, class T>
__global__ void __launch_bounds__(block)
    gather(const std::int64_t* indices, std::int64_t uses, const float* table, std::int64_t rows,
           std::int64_t width, T* y) {
  const std::int64_t packs = width / Width;  // without rest where Width > 1
  for (std::int64_t i = global_thread(); i < uses * packs; i += global_threads()) {
    const std::int64_t use = i / packs, at = i % packs * Width, row = indices[use];
    const bool there = row >= 0 && row < rows;
    Pack<T, Width> out;
    for (int lane = 0; lane < Width; ++lane)
      out.lane[lane] = rounded<T>(there ? table[row * width + at + lane] : 0.0f);
    store_pack(y + use * width + at, out);
  }
}

/// Keys and values for the sort. Indices outside go last, to a row that does not exist.
__global__ void __launch_bounds__(block)
    number_uses(const std::int64_t* indices, std::int64_t uses, std::int64_t rows, std::int32_t* keys,
                std::int32_t* numbers) {
  for (std::int64_t i = global_thread(); i < uses; i += global_threads()) {
    const std::int64_t row = indices[i];
    keys[i] = static_cast<std::int32_t>(row >= 0 && row < rows ? row : rows);
    numbers[i] = static_cast<std::int32_t>(i);
  }
}

/// A block for each use that is the first of its row; a thread a column.
template <class T>
__global__ void __launch_bounds__(block)
    sum_rows(const std::int32_t* keys, const std::int32_t* numbers, std::int64_t uses, std::int64_t rows,
             std::int64_t width, const T* dy, float* dweight) {
  constexpr int at_once = 8;  // loads in flight; the additions stay in order
  for (std::int64_t first = blockIdx.x; first < uses; first += gridDim.x) {
    const std::int64_t row = keys[first];
    if (row >= rows || (first > 0 && keys[first - 1] == row)) continue;
    std::int64_t end = first + 1;
    while (end < uses && keys[end] == row) ++end;
    for (std::int64_t column = threadIdx.x; column < width; column += block) {
      float sum = dweight[row * width + column];
      std::int64_t i = first;
      for (; i + at_once <= end; i += at_once) {
        float values[at_once];
#pragma unroll
        for (int j = 0; j < at_once; ++j)
          values[j] = to_float(dy[static_cast<std::int64_t>(numbers[i + j]) * width + column]);
#pragma unroll
        for (int j = 0; j < at_once; ++j) sum += values[j];
      }
      for (; i < end; ++i) sum += to_float(dy[static_cast<std::int64_t>(numbers[i]) * width + column]);
      dweight[row * width + column] = sum;
    }
  }
}

/// Four runs of numbers, then the sort's own room.
std::size_t run_bytes(std::int64_t uses) {
  return static_cast<std::size_t>(ceil_div(uses * static_cast<std::int64_t>(sizeof(std::int32_t)), 256) *
                                  256);
}

int bits_for(std::int64_t rows) {
  int bits = 1;
  while ((std::int64_t{1} << bits) <= rows) ++bits;  // `rows` itself is a key, too
  return bits;
}

}  // namespace

void launch_embedding(const Launch& on, const std::int64_t* indices, std::int64_t uses, const float* table,
                      std::int64_t rows, std::int64_t width, DType dtype, void* y) {
  if (uses == 0 || width == 0) return;
  with_float_type<BF16>("embedding", dtype, [&]<class T>(T) {
    constexpr int packed = 4;
    auto* to = static_cast<T*>(y);
    if (width % packed == 0 && packs_at(to, packed * sizeof(T))) {
      gather<packed><<<grid_for(uses * (width / packed), block, on), block, 0, on.stream>>>(
          indices, uses, table, rows, width, to);
    } else {
      gather<1>
          <<<grid_for(uses * width, block, on), block, 0, on.stream>>>(indices, uses, table, rows, width, to);
    }
  });
  check_launch("embedding", on);
}

std::size_t embedding_backward_bytes(std::int64_t uses, int device) {
  std::size_t sort_bytes = 0;
  const std::int32_t* none = nullptr;
  std::int32_t* nowhere = nullptr;
  check(cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, none, nowhere, none, nowhere, uses),
        "cub::DeviceRadixSort", device);
  return 4 * run_bytes(uses) + sort_bytes;
}

void launch_embedding_backward(const Launch& on, DType dtype, const void* dy, const std::int64_t* indices,
                               std::int64_t uses, std::int64_t rows, std::int64_t width, float* dweight,
                               bool accumulate, void* work, std::size_t work_bytes) {
  constexpr const char* name = "embedding_backward";
  if (!accumulate) {
    check(cudaMemsetAsync(dweight, 0, static_cast<std::size_t>(rows * width) * sizeof(float), on.stream),
          name, on.device);
  }
  if (uses == 0 || width == 0) return;
  auto* const bytes = static_cast<char*>(work);
  const std::size_t run = run_bytes(uses);
  auto* const keys = reinterpret_cast<std::int32_t*>(bytes);
  auto* const numbers = reinterpret_cast<std::int32_t*>(bytes + run);
  auto* const sorted_keys = reinterpret_cast<std::int32_t*>(bytes + 2 * run);
  auto* const sorted_numbers = reinterpret_cast<std::int32_t*>(bytes + 3 * run);
  number_uses<<<grid_for(uses, block, on), block, 0, on.stream>>>(indices, uses, rows, keys, numbers);
  check_launch(name, on);
  std::size_t sort_bytes = work_bytes - 4 * run;
  check(cub::DeviceRadixSort::SortPairs(bytes + 4 * run, sort_bytes, static_cast<const std::int32_t*>(keys),
                                        sorted_keys, static_cast<const std::int32_t*>(numbers),
                                        sorted_numbers, uses, 0, bits_for(rows), on.stream),
        "cub::DeviceRadixSort", on.device);
  with_float_type<BF16>(name, dtype, [&]<class T>(T) {
    sum_rows<<<grid_for(uses * block, block, on), block, 0, on.stream>>>(
        static_cast<const std::int32_t*>(sorted_keys), static_cast<const std::int32_t*>(sorted_numbers), uses,
        rows, width, static_cast<const T*>(dy), dweight);
  });
  check_launch(name, on);
}

}  // namespace lockstep::kernels
