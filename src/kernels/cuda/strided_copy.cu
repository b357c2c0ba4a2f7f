// Copies between views: row by row, or in tiles if the rows of both sides cross. Channels first or last, and
// images from bytes.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/kernels.h"
#include "lockstep/ops/elementwise.h"
#include "ops/strided_copy.h"

namespace lockstep::kernels {
namespace {

constexpr int threads = 256, tile = 32, tile_rows = 8;
constexpr int at_once = 4;  // packs that a thread reads before it writes

template <class E>
__device__ E copied(E from, const E& to, bool accumulate) {
  return accumulate ? rounded<E>(to_float(to) + to_float(from)) : from;
}

/// Packs of rows of dimension 0; Width 1: elements at any distance. Block (columns, rows).
template <int Width, class E>
__global__ void __launch_bounds__(threads)
    copy_rows(const __grid_constant__ ops::CopyDimensions outer, std::int64_t width, std::int64_t from_step,
              std::int64_t to_step, std::int64_t rows, const E* from, E* to, bool accumulate) {
  const std::int64_t packs = width / Width;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows;
       row += static_cast<std::int64_t>(gridDim.y) * blockDim.y) {
    const auto at = outer.offsets(row);
    for (std::int64_t i = global_thread(); i < packs; i += at_once * global_threads()) {
      Pack<E, Width> packs_read[at_once];
#pragma unroll
      for (int k = 0; k < at_once; ++k) {
        const std::int64_t pack = i + k * global_threads();
        if (pack < packs) packs_read[k] = load_pack<E, Width>(from + at[0] + pack * Width * from_step);
      }
#pragma unroll
      for (int k = 0; k < at_once; ++k) {
        const std::int64_t pack = i + k * global_threads();
        if (pack >= packs) break;
        E* const target = to + at[1] + pack * Width * to_step;
        if (accumulate) {
          const auto there = load_pack<E, Width>(target);
          for (int lane = 0; lane < Width; ++lane)
            packs_read[k].lane[lane] = copied(packs_read[k].lane[lane], there.lane[lane], true);
        }
        store_pack(target, packs_read[k]);
      }
    }
  }
}

/// Matrices [height, width], whose rows are contiguous in `from` and whose columns are in `to`.
struct CrossingMatrices {
  std::int64_t height, width, from_stride, to_stride;
  ops::CopyDimensions each;  ///< of `count`
  std::int64_t count;

  __host__ __device__ std::int64_t tiles() const {
    return count * ceil_div(height, tile) * ceil_div(width, tile);
  }
};

/// Copies by tiles in shared memory, so that both sides are read and written in runs. Block (32, 8).
template <class E>
__global__ void __launch_bounds__(tile* tile_rows)
    copy_tiles(const __grid_constant__ CrossingMatrices m, const E* from, E* to, bool accumulate) {
  __shared__ E shared[tile][tile + 1];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const std::int64_t down = ceil_div(m.height, tile), right = ceil_div(m.width, tile), tiles = m.tiles();
  for (std::int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const auto at = m.each.offsets(t / (down * right));
    const std::int64_t top = t % down * tile, left = t / down % right * tile;
    for (int i = y; i < tile; i += tile_rows) {
      if (top + i < m.height && left + x < m.width)
        shared[i][x] = from[at[0] + (top + i) * m.from_stride + left + x];
    }
    __syncthreads();
    for (int i = y; i < tile; i += tile_rows) {
      if (left + i < m.width && top + x < m.height) {
        E& target = to[at[1] + (left + i) * m.to_stride + top + x];
        target = copied(shared[x][i], target, accumulate);
      }
    }
    __syncthreads();
  }
}

constexpr int narrow = 16, slab = 2048;  // elements

/// Copies matrices of at most `narrow` columns (channels of images, positions of a filter), whose tiles would
/// be mostly empty. They have no gaps on the side where these columns are neighbours: a slab of many rows is
/// contiguous there, and gives long runs on the other side. dense_from: that side is `from`, and its rows are
/// the matrix's rows; otherwise it is `to`, and its rows are the matrix's columns.
template <class E>
__global__ void __launch_bounds__(threads)
    copy_slabs(const __grid_constant__ CrossingMatrices m, bool dense_from, const E* from, E* to,
               bool accumulate) {
  __shared__ E shared[slab];
  const std::int64_t length = dense_from ? m.height : m.width;
  const std::int64_t apart = dense_from ? m.to_stride : m.from_stride;
  const int columns = static_cast<int>(dense_from ? m.width : m.height), part = slab / columns;
  const std::int64_t parts = ceil_div(length, part), slabs = m.count * parts;
  for (std::int64_t s = blockIdx.x; s < slabs; s += gridDim.x) {
    const auto at = m.each.offsets(s / parts);
    const std::int64_t first = s % parts * part;
    const int rows = static_cast<int>(first + part < length ? part : length - first), count = rows * columns;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) {
      const int column = i / rows, row = i - column * rows;
      shared[i] = from[at[0] + (dense_from ? first * columns + i : column * apart + first + row)];
    }
    __syncthreads();
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) {
      const int across = dense_from ? rows : columns, outer = i / across, inner = i - outer * across;
      E& target = to[at[1] + (dense_from ? outer * apart + first + inner : first * columns + i)];
      target = copied(shared[inner * (dense_from ? columns : rows) + outer], target, accumulate);
    }
    __syncthreads();
  }
}

template <class E>
void launch_tiles(const Launch& on, const CrossingMatrices& matrices, const E* from, E* to, bool accumulate) {
  const bool dense_from = matrices.width <= narrow && matrices.from_stride == matrices.width;
  if (dense_from || (matrices.height <= narrow && matrices.to_stride == matrices.height)) {
    const std::int64_t slabs = matrices.count * ceil_div(matrices.height * matrices.width, slab);
    copy_slabs<<<grid_for(slabs * threads, threads, on), threads, 0, on.stream>>>(matrices, dense_from, from,
                                                                                  to, accumulate);
    return;
  }
  copy_tiles<<<grid_for(matrices.tiles() * tile * tile_rows, tile * tile_rows, on), dim3(tile, tile_rows), 0,
               on.stream>>>(matrices, from, to, accumulate);
}

template <int Width, class E>
void launch_rows(const Launch& on, const ops::CopyDimensions& dimensions, const E* from, E* to,
                 bool accumulate) {
  const ops::CopyDimensions outer = dimensions.without(0);
  const std::int64_t rows = outer.count(), packs = ceil_div(dimensions.size[0], Width);
  unsigned columns = 1;
  while (columns < threads && columns < packs) columns *= 2;
  const dim3 block(columns, threads / columns);
  const unsigned across = grid_for(ceil_div(packs, at_once), static_cast<int>(columns), on);
  const std::int64_t limit = std::max<std::int64_t>(1, std::int64_t{on.multiprocessors} * 16 / across);
  const dim3 grid(
      across, static_cast<unsigned>(std::min(ceil_div(rows, block.y), std::min<std::int64_t>(limit, 65535))));
  const auto [from_step, to_step] = dimensions.stride[0];
  copy_rows<Width><<<grid, block, 0, on.stream>>>(outer, dimensions.size[0], from_step, to_step, rows, from,
                                                  to, accumulate);
}

/// Whether every row is contiguous on both sides and consists of whole packs.
template <class E>
bool rows_of_packs(const ops::CopyDimensions& dimensions, const E* from, const E* to) {
  constexpr int width = pack_width<E>;
  bool whole = dimensions.stride[0] == ops::CopyDimensions::Offsets{1, 1} &&
               dimensions.size[0] % width == 0 && packs_at(from) && packs_at(to);
  for (int d = 1; d < dimensions.rank; ++d)
    whole = whole && dimensions.stride[d][0] % width == 0 && dimensions.stride[d][1] % width == 0;
  return whole;
}

void strided_copy(CudaBackend& gpu, const ops::StridedCopy& op) {
  const ops::CopyDimensions dimensions = op.sizes();
  if (dimensions.count() == 0) return;
  const Launch on = gpu.launch();
  const int across = ops::StridedCopy::tiled_dimension(dimensions);
  by_type_of(op.to.tensor, [&]<class E>(E) {
    const E* const from = op.from.tensor.data<E>() + op.from.offset;
    E* const to = op.to.tensor.data<E>() + op.to.offset;
    if (across != 0) {
      const ops::CopyDimensions each = dimensions.without(across).without(0);
      launch_tiles(on,
                   CrossingMatrices{dimensions.size[0], dimensions.size[across], dimensions.stride[0][0],
                                    dimensions.stride[across][1], each, each.count()},
                   from, to, op.accumulate);
    } else if (rows_of_packs(dimensions, from, to)) {
      launch_rows<pack_width<E>>(on, dimensions, from, to, op.accumulate);
    } else {
      launch_rows<1>(on, dimensions, from, to, op.accumulate);
    }
  });
}

template <class T>
struct Normalized {
  Image image;
  const std::uint8_t* x;
  const float *scale, *shift;
  T* y;
  __device__ void operator()(std::int64_t i) const {
    const auto [from, channel] = image.element_at(i);
    y[i] = rounded<T>(static_cast<float>(x[from]) * scale[channel] + shift[channel]);
  }
};

void to_layout(CudaBackend& gpu, const ops::ToLayout& op) {
  if (op.from.channel_block() == op.to.channel_block()) return gpu.copy(op.from, op.to);
  const Image image = image_of(op.from);
  const std::int64_t rows = image.channels_last ? image.positions : image.channels;
  const std::int64_t columns = image.channels_last ? image.channels : image.positions;
  transpose(gpu.launch(), op.from, op.to, image.images, rows, columns);
}

void normalize_images(CudaBackend& gpu, const ops::NormalizeImages& op) {
  by_type_of(op.y, [&]<class T>(T) {
    for_elements(gpu.launch(), op.y.numel(),
                 Normalized<T>{image_of(op.y), op.x.data<std::uint8_t>(), op.scale.data<float>(),
                               op.shift.data<float>(), op.y.data<T>()});
  });
}

}  // namespace

void transpose(const Launch& on, const Tensor& from, const Tensor& to, std::int64_t count, std::int64_t rows,
               std::int64_t columns) {
  if (from.numel() == 0) return;
  CrossingMatrices matrices{rows, columns, columns, rows, {}, count};
  matrices.each.add(count, {rows * columns, rows * columns});
  by_type_of(from, [&]<class T>(T) {
    launch_tiles(on, matrices, static_cast<const T*>(from.data<T>()), to.data<T>(), false);
  });
}

void enter_strided_copy(CudaBackend& gpu) {
  gpu.enter<&strided_copy>();
  gpu.enter<&to_layout, &normalize_images>();
}

}  // namespace lockstep::kernels
