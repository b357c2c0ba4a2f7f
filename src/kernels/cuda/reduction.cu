// The gradient norm's float64 blocks.
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/kernels.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t block_elements = 4096;
constexpr int block = 256;

/// A block of threads a block of elements. The square of a float32 is exact in float64.
__global__ void __launch_bounds__(block) sum_squares(std::int64_t count, const float* x, double* blocks) {
  __shared__ double room[32];
  const std::int64_t needed = ceil_div(count, block_elements);
  for (std::int64_t b = blockIdx.x; b < needed; b += gridDim.x) {
    const std::int64_t first = b * block_elements;
    const std::int64_t end = first + block_elements < count ? first + block_elements : count;
    double sum = 0;
    for (std::int64_t i = first + threadIdx.x; i < end; i += block) {
      const auto value = static_cast<double>(x[i]);
      sum += value * value;
    }
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) blocks[b] = sum;
  }
}

}  // namespace

void launch_block_sums_of_squares(const Launch& on, const float* x, std::int64_t count, double* blocks) {
  if (count == 0) return;
  sum_squares<<<grid_for(ceil_div(count, block_elements) * block, block, on), block, 0, on.stream>>>(count, x,
                                                                                                     blocks);
  check_launch("block_sums_of_squares", on);
}

}  // namespace lockstep::kernels
