// Copies between views: row by row, or in tiles where the rows of both sides cross. Channels first or last,
// and images from bytes.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/kernels.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/strided_copy.h"

namespace lockstep::kernels {
namespace {

constexpr int threads = 256, tile = 32, tile_rows = 8;

struct CopyOffsets {
  std::int64_t from, to;
};

/// Where number i of the dimensions from 1 on begins, but for dimension `without`.
__device__ CopyOffsets copy_offsets(const ops::CopySizes& sizes, int without, std::int64_t i) {
  CopyOffsets at{0, 0};
  for (int d = 1; d < sizes.rank; ++d) {
    if (d == without) continue;
    const std::int64_t own = i % sizes.size[d];
    at.from += own * sizes.from[d];
    at.to += own * sizes.to[d];
    i /= sizes.size[d];
  }
  return at;
}

template <class E>
__device__ E copied(E from, const E& to, bool accumulate) {
  return accumulate ? rounded<E>(to_float(to) + to_float(from)) : from;
}

/// Packs of a row; Width 1: elements at any distance. Block (columns, rows).
template <int Width, class E>
__global__ void __launch_bounds__(threads)
    copy_rows(const __grid_constant__ ops::CopySizes sizes, std::int64_t rows, const E* from, E* to,
              bool accumulate) {
  const std::int64_t packs = sizes.size[0] / Width;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows;
       row += static_cast<std::int64_t>(gridDim.y) * blockDim.y) {
    const CopyOffsets at = copy_offsets(sizes, 0, row);
    for (std::int64_t i = global_thread(); i < packs; i += global_threads()) {
      E* const target = to + at.to + i * Width * sizes.to[0];
      const auto in = load_pack<E, Width>(from + at.from + i * Width * sizes.from[0]);
      auto out = in;
      if (accumulate) {
        out = load_pack<E, Width>(target);
        for (int lane = 0; lane < Width; ++lane) out.lane[lane] = copied(in.lane[lane], out.lane[lane], true);
      }
      store_pack(target, out);
    }
  }
}

/// In tiles of dimension 0, along which `to` is contiguous, and of `across`, along which `from` is. Block
/// (32, 8).
template <class E>
__global__ void __launch_bounds__(tile* tile_rows)
    copy_tiles(const __grid_constant__ ops::CopySizes sizes, int across, std::int64_t tiles, const E* from,
               E* to, bool accumulate) {
  __shared__ E shared[tile][tile + 1];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const std::int64_t height = sizes.size[0], width = sizes.size[across];
  const std::int64_t down = ceil_div(height, tile), right = ceil_div(width, tile);
  for (std::int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const CopyOffsets at = copy_offsets(sizes, across, t / (down * right));
    const std::int64_t top = t % down * tile, left = t / down % right * tile;
    for (int i = y; i < tile; i += tile_rows) {
      if (top + i < height && left + x < width)
        shared[i][x] = from[at.from + (top + i) * sizes.from[0] + left + x];
    }
    __syncthreads();
    for (int i = y; i < tile; i += tile_rows) {
      if (left + i < width && top + x < height) {
        E& target = to[at.to + (left + i) * sizes.to[across] + top + x];
        target = copied(shared[x][i], target, accumulate);
      }
    }
    __syncthreads();
  }
}

template <int Width, class E>
void launch_rows(const Launch& on, const ops::CopySizes& sizes, const E* from, E* to, bool accumulate) {
  const std::int64_t rows = sizes.count() / sizes.size[0], packs = ceil_div(sizes.size[0], Width);
  unsigned columns = 1;
  while (columns < threads && columns < packs) columns *= 2;
  const dim3 block(columns, threads / columns);
  const unsigned across = grid_for(packs, static_cast<int>(columns), on);
  const std::int64_t most = std::max<std::int64_t>(1, std::int64_t{on.multiprocessors} * 16 / across);
  const dim3 grid(
      across, static_cast<unsigned>(std::min(ceil_div(rows, block.y), std::min<std::int64_t>(most, 65535))));
  copy_rows<Width><<<grid, block, 0, on.stream>>>(sizes, rows, from, to, accumulate);
}

/// Whether every row is contiguous on both sides, and made of whole packs.
template <class E>
bool rows_of_packs(const ops::CopySizes& sizes, const E* from, const E* to) {
  constexpr int width = pack_width<E>;
  bool whole =
      sizes.from[0] == 1 && sizes.to[0] == 1 && sizes.size[0] % width == 0 && packs_at(from) && packs_at(to);
  for (int d = 1; d < sizes.rank; ++d)
    whole = whole && sizes.from[d] % width == 0 && sizes.to[d] % width == 0;
  return whole;
}

void strided_copy(CudaBackend& gpu, const ops::StridedCopy& op) {
  const ops::CopySizes sizes = op.sizes();
  const std::int64_t count = sizes.count();
  if (count == 0) return;
  const Launch on = gpu.launch();
  int across = 0;
  for (int d = 1; d < sizes.rank; ++d) across = sizes.from[0] != 1 && sizes.from[d] == 1 ? d : across;
  const bool crosses = across != 0 && sizes.to[0] == 1;
  by_type_of(op.to.tensor, [&]<class E>(E) {
    const E* const from = op.from.tensor.data<E>() + op.from.offset;
    E* const to = op.to.tensor.data<E>() + op.to.offset;
    if (crosses) {
      const std::int64_t height = sizes.size[0], width = sizes.size[across];
      const std::int64_t tiles = count / (height * width) * ceil_div(height, tile) * ceil_div(width, tile);
      copy_tiles<<<grid_for(tiles * tile * tile_rows, tile * tile_rows, on), dim3(tile, tile_rows), 0,
                   on.stream>>>(sizes, across, tiles, from, to, op.accumulate);
    } else if (rows_of_packs(sizes, from, to)) {
      launch_rows<pack_width<E>>(on, sizes, from, to, op.accumulate);
    } else {
      launch_rows<1>(on, sizes, from, to, op.accumulate);
    }
  });
}

/// Tiles by way of shared memory, so that both sides are read and written in runs. Block (32, 8).
template <class T>
__global__ void __launch_bounds__(tile* tile_rows)
    transpose_tiles(std::int64_t images, std::int64_t rows, std::int64_t columns, const T* from, T* to) {
  __shared__ T shared[tile][tile + 1];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const std::int64_t row_tiles = ceil_div(rows, tile), column_tiles = ceil_div(columns, tile);
  for (std::int64_t t = blockIdx.x; t < images * row_tiles * column_tiles; t += gridDim.x) {
    const std::int64_t first_column = t % column_tiles * tile,
                       first_row = t / column_tiles % row_tiles * tile;
    const std::int64_t image = t / (column_tiles * row_tiles) * rows * columns;
    for (int i = y; i < tile; i += tile_rows) {
      if (first_row + i < rows && first_column + x < columns)
        shared[i][x] = from[image + (first_row + i) * columns + first_column + x];
    }
    __syncthreads();
    for (int i = y; i < tile; i += tile_rows) {
      if (first_column + i < columns && first_row + x < rows)
        to[image + (first_column + i) * rows + first_row + x] = shared[x][i];
    }
    __syncthreads();
  }
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
  const std::int64_t rows = image.channels_last ? image.places : image.channels;
  const std::int64_t columns = image.channels_last ? image.channels : image.places;
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
  const std::int64_t tiles = count * ceil_div(rows, tile) * ceil_div(columns, tile);
  if (tiles == 0) return;
  by_type_of(from, [&]<class T>(T) {
    transpose_tiles<<<grid_for(tiles * tile * tile_rows, tile * tile_rows, on), dim3(tile, tile_rows), 0,
                      on.stream>>>(count, rows, columns, from.data<T>(), to.data<T>());
  });
}

void enter_strided_copy(CudaBackend& gpu) {
  gpu.enter<&strided_copy>();
  gpu.enter<&to_layout, &normalize_images>();
}

}  // namespace lockstep::kernels
