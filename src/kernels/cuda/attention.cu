// Attention by tiles with a running softmax (Dao et al., 2022), for problems that cuDNN does not support,
// float32 above all. A warp has four rows. Its lanes are the other side's elements of a tile while it
// computes scores, and the columns of the head while it sums rows. Four rows share each read of the other
// side. All sums have a fixed order.
//
// Rotary positions: a thread has one pair at one position in several heads, so that few angles are computed.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/kernels.h"
#include "lockstep/base/error.h"
#include "lockstep/ops/attention.h"

namespace lockstep::kernels {
namespace {

constexpr int tile = 32;  // rows of either side
constexpr int warps = 8;  // of a block
constexpr int warp_rows = tile / warps;
constexpr int block = 32 * warps;

/// Shared memory in which the lanes of a warp exchange weights (add_rows()), in floats. With wide heads, the
/// tiles need all of it.
constexpr int weight_floats(int columns) { return columns <= 4 ? block * warp_rows : 0; }

/// Floats from one row of a tile to the next: an odd number of packs of four, so that lanes that read the
/// same pack of their rows use all banks.
__host__ __device__ constexpr int row_floats(int width) { return 4 * ((width + 3) / 4 | 1); }

__device__ int warp_of_block() { return static_cast<int>(threadIdx.x) / 32; }
__device__ int lane_of_warp() { return static_cast<int>(threadIdx.x) % 32; }

/// One head of a matrix.
template <class T>
struct Head {
  T* data;
  std::int64_t stride;

  __device__ T* row(std::int64_t t) const { return data + t * stride; }
};

template <class T>
__device__ Head<T> head_of(const HeadMatrix& matrix, std::int64_t image, std::int64_t head) {
  const ops::HeadStrides& strides = matrix.strides;
  return {static_cast<T*>(matrix.data) + image * strides.image + head * strides.head, strides.row};
}

/// Rows [first, first + tile) as float32. Rows past the end and columns past the width are zeros.
template <class T>
__device__ void load_tile(const Head<T>& head, std::int64_t first, std::int64_t time, int width,
                          float* tile_data) {
  for (int row = warp_of_block(); row < tile; row += warps) {
    const T* const from = first + row < time ? head.row(first + row) : nullptr;
    for (int column = lane_of_warp(); column < row_floats(width); column += 32)
      tile_data[row * row_floats(width) + column] = from && column < width ? to_float(from[column]) : 0.0f;
  }
}

/// load_tile() into the memory of a tile that the block has read.
template <class T>
__device__ void replace_tile(const Head<T>& head, std::int64_t first, std::int64_t time, int width,
                             float* tile_data) {
  __syncthreads();
  load_tile(head, first, time, width, tile_data);
  __syncthreads();
}

/// products[r] = row r of the warp * the lane's row, over the columns in order.
__device__ void multiply(const float* warp_tile, const float* lane_tile, int width,
                         float (&products)[warp_rows]) {
  const int stride = row_floats(width);
  const float* const rows = warp_tile + warp_of_block() * warp_rows * stride;
  const float* const of_lane = lane_tile + lane_of_warp() * stride;
#pragma unroll
  for (int r = 0; r < warp_rows; ++r) products[r] = 0;
  for (int d = 0; d < width; d += 4) {
    const Pack<float, 4> theirs = load_pack<float, 4>(of_lane + d);
#pragma unroll
    for (int r = 0; r < warp_rows; ++r) {
      const Pack<float, 4> mine = load_pack<float, 4>(rows + r * stride + d);
#pragma unroll
      for (int i = 0; i < 4; ++i) products[r] += mine.lane[i] * theirs.lane[i];
    }
  }
}

/// sums[r][i] += weight[r] of lane j * tile_data[j][column lane + 32 i], over the 32 rows j in order. Lanes
/// exchange their weights through `weights` in shared memory, or through shuffles if it has no floats.
template <int Columns>
__device__ void add_rows(const float (&weight)[warp_rows], float* weights, const float* tile_data, int width,
                         float (&sums)[warp_rows][Columns]) {
  const int lane = lane_of_warp(), stride = row_floats(width);
  float* const of_warp = weights + warp_of_block() * 32 * warp_rows;
  Pack<float, warp_rows> by;
#pragma unroll
  for (int r = 0; r < warp_rows; ++r) by.lane[r] = weight[r];
  if constexpr (weight_floats(Columns) > 0) {
    __syncwarp();  // all lanes have read the previous weights
    store_pack(of_warp + lane * warp_rows, by);
    __syncwarp();
  }
#pragma unroll 8  // nvcc takes much longer to unroll all 32 rows, for every width and type
  for (int j = 0; j < tile; ++j) {
    if constexpr (weight_floats(Columns) > 0) {
      by = load_pack<float, warp_rows>(of_warp + j * warp_rows);
    } else {
#pragma unroll
      for (int r = 0; r < warp_rows; ++r) by.lane[r] = __shfl_sync(0xffffffffu, weight[r], j);
    }
#pragma unroll
    for (int i = 0; i < Columns; ++i) {
      const int column = lane + 32 * i;
      if (column >= width) continue;
      const float value = tile_data[j * stride + column];
#pragma unroll
      for (int r = 0; r < warp_rows; ++r) sums[r][i] += by.lane[r] * value;
    }
  }
}

template <class T, int Columns>
__device__ void store_row(T* row, const float (&sums)[Columns], float factor, int width) {
#pragma unroll
  for (int i = 0; i < Columns; ++i) {
    const int column = lane_of_warp() + 32 * i;
    if (column < width) row[column] = rounded<T>(sums[i] * factor);
  }
}

/// The head, and the tile of it, of a block.
struct Work {
  std::int64_t image, head, first;  // first: first row of the tile

  /// A launch has fewer than 2^31 blocks, and they divide faster in 32 bits.
  __device__ Work(std::int64_t of_heads, std::int64_t time, unsigned number) {
    const auto tiles = static_cast<unsigned>(ceil_div(time, tile)), heads = static_cast<unsigned>(of_heads);
    first = std::int64_t{number % tiles} * tile;
    head = number / tiles % heads;
    image = number / tiles / heads;
  }
};

/// The number of blocks.
unsigned works(const ops::AttentionSizes& p, std::int64_t heads, std::int64_t time) {
  return static_cast<unsigned>(p.batch * heads * ceil_div(time, tile));
}

/// Query heads that read one key head.
__device__ unsigned group_of(const ops::AttentionSizes& p) {
  return static_cast<unsigned>(p.heads) / static_cast<unsigned>(p.key_heads);
}

/// The first of a query head's rows in log_sum_exp and delta.
__device__ std::int64_t item_of(const ops::AttentionSizes& p, std::int64_t image, std::int64_t head) {
  return (image * p.heads + head) * p.queries;
}

/// The key of query row t's own position, under a causal mask.
__device__ std::int64_t own_key(const ops::AttentionSizes& p, std::int64_t t) {
  return p.keys - p.queries + t;
}

/// The first key of the document of query row t, a row of the image.
__device__ std::int64_t first_key(const ops::AttentionSizes& p, const std::int64_t* positions,
                                  std::int64_t image, std::int64_t t) {
  return positions && t < p.queries ? own_key(p, t) - positions[image * p.queries + t] : 0;
}

/// Whether query row t attends to key j. It reads the row's position again for every key: registers are few.
__device__ bool looks(const ops::AttentionSizes& p, const std::int64_t* positions, std::int64_t image,
                      std::int64_t t, std::int64_t j) {
  if (t >= p.queries || j >= p.keys) return false;
  return !p.causal || (j <= own_key(p, t) && first_key(p, positions, image, t) <= j);
}

// Kernels without documents and without a bias are instances of their own (Masked = false), for which
// `positions` is null and no bias is read.

/// The bias of all heads; the data may be null.
struct Bias {
  const float* data;
  ops::HeadStrides strides;
  float factor;  ///< of scores that are not scaled yet

  __device__ const float* of_head(std::int64_t image, std::int64_t head) const {
    return data + image * strides.image + head * strides.head;
  }
  /// Adds that of query row t and key j, if there are such, to a score. of_head: the head's.
  __device__ void add(const float* of_head, const ops::AttentionSizes& p, std::int64_t t, std::int64_t j,
                      float& score) const {
    if (data && t < p.queries && j < p.keys) score += factor * of_head[t * strides.row + j];
  }
};

/// The tiles of keys that the tile of queries from row `first` on attends to.
struct KeyTiles {
  std::int64_t begin, end;

  __device__ KeyTiles(const ops::AttentionSizes& p, const std::int64_t* positions, std::int64_t image,
                      std::int64_t first) {
    const std::int64_t seen = first_key(p, positions, image, first), last = own_key(p, first) + tile;
    begin = seen > 0 ? seen / tile * tile : 0;
    end = p.causal && last < p.keys ? last : p.keys;
  }
};

// The kernels may take all registers, as shared memory lets few blocks run at once anyway: none spills.

/// Forward: a block has `tile` queries and walks through the keys.
template <int Columns, bool Masked, class T>
__global__ void __launch_bounds__(block, 1)
    forward(ops::AttentionSizes p, const std::int64_t* positions, Bias bias, HeadMatrix q, HeadMatrix k,
            HeadMatrix v, HeadMatrix y, float scale, float* log_sum_exp) {
  if constexpr (!Masked) positions = nullptr;
  alignas(16) extern __shared__ float shared[];
  const int width = static_cast<int>(p.width), tile_floats = tile * row_floats(width);
  float *const weights = shared, *const queries = weights + weight_floats(Columns),
               *const keys = queries + tile_floats, *const values = keys + tile_floats;
  const Work work(p.heads, p.queries, blockIdx.x);
  load_tile(head_of<const T>(q, work.image, work.head), work.first, p.queries, width, queries);
  const Head<const T> key_head = head_of<const T>(k, work.image, work.head / group_of(p));
  const Head<const T> value_head = head_of<const T>(v, work.image, work.head / group_of(p));
  const std::int64_t first_row = work.first + warp_of_block() * warp_rows;
  float max[warp_rows], sum[warp_rows], sums[warp_rows][Columns] = {};
#pragma unroll
  for (int r = 0; r < warp_rows; ++r) {
    max[r] = -INFINITY;
    sum[r] = 0;
  }
  const KeyTiles tiles(p, positions, work.image, work.first);
  for (std::int64_t first = tiles.begin; first < tiles.end; first += tile) {
    __syncthreads();  // the block has read the previous tiles
    load_tile(key_head, first, p.keys, width, keys);
    load_tile(value_head, first, p.keys, width, values);
    __syncthreads();
    float score[warp_rows], weight[warp_rows];
    multiply(queries, keys, width, score);
#pragma unroll
    for (int r = 0; r < warp_rows; ++r) {
      const bool visible = looks(p, positions, work.image, first_row + r, first + lane_of_warp());
      if constexpr (Masked)
        bias.add(bias.of_head(work.image, work.head), p, first_row + r, first + lane_of_warp(), score[r]);
      score[r] = visible ? scale * score[r] : -INFINITY;
      const float now = fmaxf(max[r], warp_max(score[r]));
      // If all scores so far are -inf, later keys may still count.
      weight[r] = visible ? expf(score[r] - (now == -INFINITY ? 0.0f : now)) : 0.0f;
      const float kept = max[r] == -INFINITY ? 0.0f : expf(max[r] - now);
      sum[r] = sum[r] * kept + warp_sum(weight[r]);
#pragma unroll
      for (int i = 0; i < Columns; ++i) sums[r][i] *= kept;
      max[r] = now;
    }
    add_rows(weight, weights, values, width, sums);
  }
  const Head<T> to = head_of<T>(y, work.image, work.head);
#pragma unroll
  for (int r = 0; r < warp_rows; ++r) {
    const std::int64_t t = first_row + r;
    if (t >= p.queries) continue;
    store_row(to.row(t), sums[r], 1.0f / sum[r], width);
    if (log_sum_exp && lane_of_warp() == 0)
      log_sum_exp[item_of(p, work.image, work.head) + t] = max[r] + logf(sum[r]);
  }
}

/// delta[row] = sum of dy y over a head's row: a warp a row.
template <class T>
__global__ void __launch_bounds__(block)
    sum_products(ops::AttentionSizes p, HeadMatrix dy, HeadMatrix y, float* delta) {
  const int lane = lane_of_warp();
  const std::int64_t rows = p.batch * p.heads * p.queries;
  for (std::int64_t row = global_thread() / 32; row < rows; row += global_threads() / 32) {
    const std::int64_t t = row % p.queries, head = row / p.queries % p.heads,
                       image = row / p.queries / p.heads;
    const T *a = head_of<const T>(dy, image, head).row(t), *b = head_of<const T>(y, image, head).row(t);
    float sum = 0;
    for (std::int64_t i = lane; i < p.width; i += 32) sum += to_float(a[i]) * to_float(b[i]);
    sum = warp_sum(sum);
    if (lane == 0) delta[row] = sum;
  }
}

/// A block has `tile` queries and walks through the keys. InTurn: it loads the two tiles of the other side
/// one after the other, into the memory of one.
template <int Columns, bool InTurn, bool Masked, class T>
__global__ void __launch_bounds__(block, 1)
    query_gradient(ops::AttentionSizes p, const std::int64_t* positions, Bias bias, HeadMatrix dy,
                   HeadMatrix q, HeadMatrix k, HeadMatrix v, float scale, const float* log_sum_exp,
                   const float* delta, HeadMatrix dq, float* dbias) {
  if constexpr (!Masked) positions = nullptr;
  alignas(16) extern __shared__ float shared[];
  const int width = static_cast<int>(p.width), tile_floats = tile * row_floats(width);
  float *const weights = shared, *const queries = weights + weight_floats(Columns),
               *const upstream = queries + tile_floats, *const keys = upstream + tile_floats,
               *const values = InTurn ? keys : keys + tile_floats;
  const Work work(p.heads, p.queries, blockIdx.x);
  const std::int64_t item = item_of(p, work.image, work.head);
  load_tile(head_of<const T>(q, work.image, work.head), work.first, p.queries, width, queries);
  load_tile(head_of<const T>(dy, work.image, work.head), work.first, p.queries, width, upstream);
  const Head<const T> key_head = head_of<const T>(k, work.image, work.head / group_of(p));
  const Head<const T> value_head = head_of<const T>(v, work.image, work.head / group_of(p));
  const std::int64_t first_row = work.first + warp_of_block() * warp_rows;
  float log[warp_rows], centre[warp_rows], sums[warp_rows][Columns] = {};
#pragma unroll
  for (int r = 0; r < warp_rows; ++r) {
    const bool there = first_row + r < p.queries;
    log[r] = there ? log_sum_exp[item + first_row + r] : 0.0f;
    centre[r] = there ? delta[item + first_row + r] : 0.0f;
  }
  const KeyTiles tiles(p, positions, work.image, work.first);
  for (std::int64_t first = tiles.begin; first < tiles.end; first += tile) {
    __syncthreads();
    if constexpr (!InTurn) load_tile(key_head, first, p.keys, width, keys);
    load_tile(value_head, first, p.keys, width, values);
    __syncthreads();
    float score[warp_rows], product[warp_rows], slope[warp_rows];
    if constexpr (InTurn) {
      multiply(upstream, values, width, product);
      replace_tile(key_head, first, p.keys, width, keys);
    }
    multiply(queries, keys, width, score);
    if constexpr (!InTurn) multiply(upstream, values, width, product);
#pragma unroll
    for (int r = 0; r < warp_rows; ++r) {
      const bool visible = looks(p, positions, work.image, first_row + r, first + lane_of_warp());
      if constexpr (Masked)
        bias.add(bias.of_head(work.image, work.head), p, first_row + r, first + lane_of_warp(), score[r]);
      slope[r] = visible ? scale * expf(scale * score[r] - log[r]) * (product[r] - centre[r]) : 0.0f;
      if constexpr (Masked) {
        if (dbias && visible)
          dbias[(item + first_row + r) * p.keys + first + lane_of_warp()] = slope[r] / scale;
      }
    }
    add_rows(slope, weights, keys, width, sums);
  }
  const Head<T> to = head_of<T>(dq, work.image, work.head);
#pragma unroll
  for (int r = 0; r < warp_rows; ++r)
    if (first_row + r < p.queries) store_row(to.row(first_row + r), sums[r], 1.0f, width);
}

/// A block has `tile` keys and walks through the queries of all heads that read them.
template <int Columns, bool InTurn, bool Masked, class T>
__global__ void __launch_bounds__(block, 1)
    key_gradients(ops::AttentionSizes p, const std::int64_t* positions, Bias bias, HeadMatrix dy,
                  HeadMatrix q, HeadMatrix k, HeadMatrix v, float scale, const float* log_sum_exp,
                  const float* delta, HeadMatrix dk, HeadMatrix dv) {
  if constexpr (!Masked) positions = nullptr;
  alignas(16) extern __shared__ float shared[];
  const int width = static_cast<int>(p.width), tile_floats = tile * row_floats(width);
  float *const weights = shared, *const keys = weights + weight_floats(Columns),
               *const values = keys + tile_floats, *const queries = values + tile_floats,
               *const upstream = InTurn ? queries : queries + tile_floats;
  const Work work(p.key_heads, p.keys, blockIdx.x);
  load_tile(head_of<const T>(k, work.image, work.head), work.first, p.keys, width, keys);
  load_tile(head_of<const T>(v, work.image, work.head), work.first, p.keys, width, values);
  const std::int64_t first_row = work.first + warp_of_block() * warp_rows;
  float key_sums[warp_rows][Columns] = {}, value_sums[warp_rows][Columns] = {};
  const unsigned group = group_of(p);
  for (std::int64_t head = work.head * group; head < (work.head + 1) * group; ++head) {
    const Head<const T> query_head = head_of<const T>(q, work.image, head);
    const Head<const T> upstream_head = head_of<const T>(dy, work.image, head);
    const std::int64_t item = item_of(p, work.image, head);
    const std::int64_t ahead = p.causal ? work.first - own_key(p, 0) : 0;  // queries that see no such key
    for (std::int64_t first = ahead > 0 ? ahead / tile * tile : 0; first < p.queries; first += tile) {
      __syncthreads();
      load_tile(query_head, first, p.queries, width, queries);
      if constexpr (!InTurn) load_tile(upstream_head, first, p.queries, width, upstream);
      __syncthreads();
      const std::int64_t t = first + lane_of_warp();  // this lane's query
      const bool there = t < p.queries;
      const float log = there ? log_sum_exp[item + t] : 0.0f;
      const float centre = there ? delta[item + t] : 0.0f;
      float score[warp_rows], product[warp_rows], probability[warp_rows], slope[warp_rows];
      multiply(keys, queries, width, score);
      if constexpr (InTurn) replace_tile(upstream_head, first, p.queries, width, upstream);
      multiply(values, upstream, width, product);
#pragma unroll
      for (int r = 0; r < warp_rows; ++r) {
        const bool visible = looks(p, positions, work.image, t, first_row + r);
        if constexpr (Masked) bias.add(bias.of_head(work.image, head), p, t, first_row + r, score[r]);
        probability[r] = visible ? expf(scale * score[r] - log) : 0.0f;
        slope[r] = visible ? scale * probability[r] * (product[r] - centre) : 0.0f;
      }
      add_rows(probability, weights, upstream, width, value_sums);
      if constexpr (InTurn) replace_tile(query_head, first, p.queries, width, queries);
      add_rows(slope, weights, queries, width, key_sums);
    }
  }
  const Head<T> key_to = head_of<T>(dk, work.image, work.head);
  const Head<T> value_to = head_of<T>(dv, work.image, work.head);
#pragma unroll
  for (int r = 0; r < warp_rows; ++r) {
    if (first_row + r >= p.keys) continue;
    store_row(key_to.row(first_row + r), key_sums[r], 1.0f, width);
    store_row(value_to.row(first_row + r), value_sums[r], 1.0f, width);
  }
}

/// The columns of a head in units of 32, and whether the backward is InTurn.
template <int Columns, bool InTurn>
struct Way {};

/// Calls run(Way) for heads of this width. Above 196, four tiles exceed the 99 KiB that a block has on sm_86,
/// sm_89 and sm_120.
template <class Run>
void with_columns(std::int64_t width, const Run& run) {
  if (width <= 32) return run(Way<1, false>{});
  if (width <= 64) return run(Way<2, false>{});
  if (width <= 128) return run(Way<4, false>{});
  if (width <= 196) return run(Way<8, false>{});
  run(Way<8, true>{});
}

constexpr int shared_bytes(std::int64_t width, int tiles, int columns) {
  const int floats = tiles * tile * row_floats(static_cast<int>(width)) + weight_floats(columns);
  return floats * static_cast<int>(sizeof(float));
}
static_assert(shared_bytes(196, 4, 8) <= 99 * 1024 && shared_bytes(256, 3, 8) <= 99 * 1024);  // with_columns

/// Allows a kernel more than 48 KiB of shared memory. UsageError if the GPU has less.
template <class Kernel>
void allow_shared(const Kernel& kernel, int bytes, const ops::AttentionSizes& sizes) {
  if (bytes <= 48 * 1024 ||
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) == cudaSuccess)
    return;
  cudaGetLastError();  // the device stays usable
  throw UsageError(
      "attention: heads of width {} need {} KiB of shared memory, more than a block has on this GPU; "
      "use narrower heads",
      sizes.width, bytes / 1024);
}

float scale_of(const ops::AttentionSizes& p) { return 1.0f / sqrtf(static_cast<float>(p.width)); }

/// Calls run(way, type, masked), as with_columns() and by_dtype() do.
template <class Run>
void with_columns_and_type(const ops::AttentionSizes& p, DType dtype, bool masked, const Run& run) {
  with_columns(p.width, [&](auto way) {
    by_dtype(dtype, [&](auto type) {
      masked ? run(way, type, std::true_type()) : run(way, type, std::false_type());
    });
  });
}

Bias bias_of(const ops::AttentionSizes& p, const AttentionMatrices& m) {
  return {m.bias, m.bias_strides, sqrtf(static_cast<float>(p.width))};
}

}  // namespace

void attend(const Launch& on, DType dtype, const ops::AttentionSizes& sizes, const AttentionMatrices& m) {
  const auto run = [&]<int Columns, bool InTurn, class T, class Masked>(Way<Columns, InTurn>, T, Masked) {
    const auto kernel = forward<Columns, Masked::value, T>;
    const int bytes = shared_bytes(sizes.width, 3, Columns);
    allow_shared(kernel, bytes, sizes);
    kernel<<<works(sizes, sizes.heads, sizes.queries), block, bytes, on.stream>>>(
        sizes, m.positions, bias_of(sizes, m), m.q, m.k, m.v, m.y, scale_of(sizes), m.log_sum_exp);
  };
  with_columns_and_type(sizes, dtype, m.bias || m.positions, run);
}

void attend_backward(const Launch& on, DType dtype, const ops::AttentionSizes& sizes,
                     const AttentionMatrices& m, const AttentionGradients& g) {
  const auto run = [&]<int Columns, bool InTurn, class T, class Masked>(Way<Columns, InTurn>, T, Masked) {
    const std::int64_t rows = sizes.batch * sizes.heads * sizes.queries;
    const float scale = scale_of(sizes);
    const Bias bias = bias_of(sizes, m);
    const int bytes = shared_bytes(sizes.width, InTurn ? 3 : 4, Columns);
    sum_products<T><<<grid_for(rows * 32, block, on), block, 0, on.stream>>>(sizes, g.dy, m.y, g.delta);
    const auto of_queries = query_gradient<Columns, InTurn, Masked::value, T>;
    allow_shared(of_queries, bytes, sizes);
    of_queries<<<works(sizes, sizes.heads, sizes.queries), block, bytes, on.stream>>>(
        sizes, m.positions, bias, g.dy, m.q, m.k, m.v, scale, m.log_sum_exp, g.delta, g.dq, g.dbias);
    const auto of_keys = key_gradients<Columns, InTurn, Masked::value, T>;
    allow_shared(of_keys, bytes, sizes);
    of_keys<<<works(sizes, sizes.key_heads, sizes.keys), block, bytes, on.stream>>>(
        sizes, m.positions, bias, g.dy, m.q, m.k, m.v, scale, m.log_sum_exp, g.delta, g.dk, g.dv);
  };
  with_columns_and_type(sizes, dtype, m.bias || m.positions, run);
}

namespace {

/// Pair i of a head's row is (row[i * step], row[i * step + distance]). rows: the positions of an image, or
/// of all images if they have their own (positions). Rows of heads are head_stride apart, and those of
/// positions row_stride; each image has image_heads heads. sign: the sign of the angles.
struct Pairs {
  const std::int64_t* positions;
  std::int64_t rows, time, heads, image_heads, head_stride, row_stride, width, step, distance;
  double log2_base;
  ops::RotaryScaling scaling;
  std::int64_t first_position;
  float sign;
};

template <class T>
__global__ void __launch_bounds__(block) rotate_pairs(Pairs p, const T* x, T* y) {
  const std::int64_t pairs = p.width / 2;
  const std::int64_t image_size = p.image_heads * p.time * p.width;
  for (std::int64_t number = global_thread(); number < p.rows * pairs; number += global_threads()) {
    const std::int64_t row = number / pairs, i = number % pairs, t = row % p.time;
    const std::int64_t position = p.positions ? p.positions[row] : p.first_position + t;
    const ops::Rotation by = ops::rotation_by(static_cast<double>(position) *
                                              ops::turns_per_position(p.log2_base, p.scaling, i, p.width));
    const float cosine = by.cosine, sine = p.sign * by.sine;
    for (std::int64_t head = blockIdx.y; head < p.heads; head += gridDim.y) {
      const std::int64_t image = row / p.time + head / p.image_heads,
                         first = image * image_size + head % p.image_heads * p.head_stride +
                                 t * p.row_stride + i * p.step,
                         second = first + p.distance;
      const float a = to_float(x[first]), b = to_float(x[second]);
      y[first] = rounded<T>(a * cosine - b * sine);
      y[second] = rounded<T>(b * cosine + a * sine);
    }
  }
}

void rotary(CudaBackend& gpu, const ops::Rotary& op) {
  if (op.x.numel() == 0) return;
  const bool halves = op.layout == ops::RotaryLayout::halves;
  const std::int64_t images = op.x.size(0), time = op.time(), width = op.x.size(3), image_heads = op.heads(),
                     heads = op.positions ? image_heads : images * image_heads,
                     rows = op.positions ? images * time : time;
  const Pairs pairs{op.positions ? op.positions.data<std::int64_t>() : nullptr,
                    rows,
                    time,
                    heads,
                    image_heads,
                    op.time_first ? width : time * width,
                    op.time_first ? image_heads * width : width,
                    width,
                    halves ? 1 : 2,
                    halves ? width / 2 : 1,
                    std::log2(static_cast<double>(op.base)),
                    op.scaling,
                    op.first_position,
                    op.back ? -1.0f : 1.0f};
  const Launch on = gpu.launch();
  const unsigned across = grid_for(rows * width / 2, block, on);
  const auto max = static_cast<std::int64_t>(grid_for(op.x.numel() / 2, block, on));
  const auto down = static_cast<unsigned>(std::clamp<std::int64_t>(max / across, 1, heads));
  by_type_of(op.x, [&]<class T>(T) {
    rotate_pairs<<<dim3(across, down), block, 0, on.stream>>>(pairs, op.x.data<T>(), op.y.data<T>());
  });
}

}  // namespace

void enter_rotary(CudaBackend& gpu) { gpu.enter<&rotary>(); }

}  // namespace lockstep::kernels
