// Low-rank factors of gradients: random and orthonormal vectors, and what two factors stand for.
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/kernels.h"
#include "lockstep/base/random.h"

namespace lockstep::kernels {
namespace {

constexpr int block = 256;
constexpr int large_block = 1024;  // of the launches of one block

/// Random::normal.
__device__ float normal(const Random& random, std::int64_t element) {
  const auto words = random.block(static_cast<std::uint64_t>(element) / 2);
  const int pair = 2 * static_cast<int>(element % 2);
  const double u = (static_cast<double>(words[pair]) + 1.0) * 0x1p-32, v = words[pair + 1] * 0x1p-32;
  return static_cast<float>(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

__device__ Random row_of(RandomKey key, std::int64_t row) {
  key.shard = static_cast<std::uint32_t>(row);
  return Random(key);
}

__global__ void __launch_bounds__(block) draw_numbers(RandomKey key, std::int64_t count, float* to) {
  const Random random(key);
  for (std::int64_t i = global_thread(); i < count; i += global_threads()) to[i] = normal(random, i);
}

// Of one block, as on the CPU. A thread has the same elements of every vector, so only sums cross threads.

__device__ double dot(const double* a, const double* b, std::int64_t length, double* room) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < length; i += blockDim.x) sum += a[i] * b[i];
  return block_sum(sum, room);
}

/// False if the vectors are not finite.
__device__ bool load_vectors(const float* x, const VectorLayout& v, double* work, double* room) {
  bool finite = true;
  for (std::int64_t k = 0; k < v.count; ++k) {
    double* const vector = work + k * v.length;
    for (std::int64_t i = threadIdx.x; i < v.length; i += blockDim.x)
      vector[i] = x[k * v.vector_stride + i * v.element_stride];
    finite = isfinite(dot(vector, vector, v.length, room)) && finite;
  }
  return finite;
}

__device__ void store_vectors(const double* work, const VectorLayout& v, float* y) {
  for (std::int64_t k = 0; k < v.count; ++k) {
    for (std::int64_t i = threadIdx.x; i < v.length; i += blockDim.x)
      y[k * v.vector_stride + i * v.element_stride] = static_cast<float>(work[k * v.length + i]);
  }
}

/// False if nothing is left of the vector, which is zero then.
__device__ bool orthonormalise_last(const double* first, std::int64_t count, double* vector,
                                    std::int64_t length, double* room) {
  constexpr double vanishing = 1e-7;
  const double before = sqrt(dot(vector, vector, length, room));
  double norm = before;
  for (int pass = 0; pass < 2; ++pass) {
    const double at_start = norm;
    for (std::int64_t k = 0; k < count; ++k) {
      const double* const other = first + k * length;
      const double along = dot(other, vector, length, room);
      for (std::int64_t i = threadIdx.x; i < length; i += blockDim.x) vector[i] -= along * other[i];
    }
    norm = sqrt(dot(vector, vector, length, room));
    if (norm > 0.5 * at_start) break;
  }
  const bool left = norm > vanishing * before;
  const double factor = left ? 1 / norm : 0;
  for (std::int64_t i = threadIdx.x; i < length; i += blockDim.x) vector[i] *= factor;
  return left;
}

/// False if some have become zero.
__device__ bool orthonormalise_all(double* work, const VectorLayout& v, double* room) {
  bool complete = true;
  for (std::int64_t k = 0; k < v.count; ++k)
    complete = orthonormalise_last(work, k, work + k * v.length, v.length, room) && complete;
  return complete;
}

__global__ void __launch_bounds__(large_block)
    make_orthonormal(const float* x, VectorLayout v, const float* condition, bool draws, RandomKey key,
                     double* work, float* y) {
  __shared__ double room[32];
  if (condition && *condition == 0) return;
  if (!load_vectors(x, v, work, room)) return;
  const bool complete = orthonormalise_all(work, v, room);
  if (!complete && draws) {
    for (std::int64_t k = 0; k < v.count; ++k) {
      double* const vector = work + k * v.length;
      const bool vanished = dot(vector, vector, v.length, room) == 0;
      const Random random = row_of(key, k);
      for (std::int64_t i = threadIdx.x; i < v.length; i += blockDim.x)
        vector[i] = vanished ? normal(random, i) : static_cast<float>(vector[i]);
    }
    orthonormalise_all(work, v, room);
  }
  store_vectors(work, v, y);
}

__device__ float infinite_among(const float* x, std::int64_t count) {
  float found = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) found = isfinite(x[i]) ? found : 1;
  return found;
}

__global__ void __launch_bounds__(large_block) judge(FactorArrays f) {
  __shared__ float room[32];
  const float bad = block_sum(infinite_among(f.p, f.n * f.rank) + infinite_among(f.q, f.rank * f.m), room);
  if (threadIdx.x == 0) *f.valid = bad == 0 && *f.failed == 0 ? 1 : 0;
}

/// A thread has some columns, and goes through rows.
__global__ void __launch_bounds__(block) expand_factors(FactorArrays f) {
  const bool keeps_rest = f.rest && *f.valid != 0;
  for (std::int64_t j = global_thread(); j < f.m; j += global_threads()) {
    for (std::int64_t i = blockIdx.y; i < f.n; i += gridDim.y) {
      float sum = 0;
      for (std::int64_t k = 0; k < f.rank; ++k) sum += f.p[i * f.rank + k] * f.q[k * f.m + j];
      const std::int64_t at = i * f.m + j;
      if (keeps_rest) f.rest[at] = f.matrix[at] - f.share * sum;
      f.matrix[at] = sum;
    }
  }
}

}  // namespace

void launch_draw_normal(const Launch& on, const RandomKey& key, std::int64_t count, float* to) {
  if (count == 0) return;
  draw_numbers<<<grid_for(count, block, on), block, 0, on.stream>>>(key, count, to);
  check_launch("draw_normal", on);
}

void launch_orthonormalise(const Launch& on, const float* x, const VectorLayout& vectors,
                           const float* condition, const RandomKey* draw, double* work, float* y) {
  make_orthonormal<<<1, large_block, 0, on.stream>>>(x, vectors, condition, draw != nullptr,
                                                     draw ? *draw : RandomKey{}, work, y);
  check_launch("orthonormalise", on);
}

void launch_expand(const Launch& on, const FactorArrays& factors) {
  judge<<<1, large_block, 0, on.stream>>>(factors);
  check_launch("expand", on);
  if (factors.n == 0 || factors.m == 0) return;
  const unsigned across = grid_for(factors.m, block, on);
  const std::int64_t wanted = ceil_div(std::int64_t{on.multiprocessors} * 16, across);
  const auto down = static_cast<unsigned>(factors.n < wanted ? factors.n : wanted);
  expand_factors<<<dim3(across, down), block, 0, on.stream>>>(factors);
  check_launch("expand", on);
}

}  // namespace lockstep::kernels
