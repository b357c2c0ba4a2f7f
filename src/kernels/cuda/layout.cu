// Channels first or last, and images from bytes.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/image.h"
#include "kernels/cuda/kernels.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::kernels {
namespace {

constexpr int tile = 32, tile_rows = 8;

/// Tiles by way of shared memory, so that both sides are read and written in runs. Block (32, 8).
template <class T>
__global__ void __launch_bounds__(tile* tile_rows)
    transpose_tiles(std::int64_t images, std::int64_t rows, std::int64_t columns, const T* from, T* to) {
  __shared__ T room[tile][tile + 1];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const std::int64_t row_tiles = ceil_div(rows, tile), column_tiles = ceil_div(columns, tile);
  for (std::int64_t t = blockIdx.x; t < images * row_tiles * column_tiles; t += gridDim.x) {
    const std::int64_t first_column = t % column_tiles * tile,
                       first_row = t / column_tiles % row_tiles * tile;
    const std::int64_t image = t / (column_tiles * row_tiles) * rows * columns;
    for (int i = y; i < tile; i += tile_rows) {
      if (first_row + i < rows && first_column + x < columns)
        room[i][x] = from[image + (first_row + i) * columns + first_column + x];
    }
    __syncthreads();
    for (int i = y; i < tile; i += tile_rows) {
      if (first_column + i < columns && first_row + x < rows)
        to[image + (first_column + i) * rows + first_row + x] = room[x][i];
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

void enter_layout(CudaBackend& gpu) { gpu.enter<&to_layout, &normalize_images>(); }

}  // namespace lockstep::kernels
