// Channels first or last, and images from bytes.
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/kernels.h"

namespace lockstep::kernels {
namespace {

constexpr int tile = 32, tile_rows = 8;

/// Tiles by way of shared memory, so that both sides are read and written in runs. Block (32, 8).
template <class T>
__global__ void __launch_bounds__(tile* tile_rows)
    transpose(std::int64_t images, std::int64_t rows, std::int64_t columns, const T* from, T* to) {
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
void launch(const Launch& on, const void* from, void* to, std::int64_t images, std::int64_t rows,
            std::int64_t columns) {
  const std::int64_t tiles = images * ceil_div(rows, tile) * ceil_div(columns, tile);
  const unsigned grid = grid_for(tiles * tile * tile_rows, tile * tile_rows, on);
  transpose<<<grid, dim3(tile, tile_rows), 0, on.stream>>>(images, rows, columns, static_cast<const T*>(from),
                                                           static_cast<T*>(to));
}

template <class T>
__global__ void __launch_bounds__(256)
    normalize(Image image, const std::uint8_t* x, const float* scale, const float* shift, T* y) {
  const std::int64_t count = image.elements();
  for (std::int64_t i = global_thread(); i < count; i += global_threads()) {
    std::int64_t channel, from = i;
    if (image.channels_last) {
      channel = i % image.channels;
      const std::int64_t place = i / image.channels % image.places,
                         number = i / (image.channels * image.places);
      from = (number * image.channels + channel) * image.places + place;
    } else {
      channel = i / image.places % image.channels;
    }
    y[i] = rounded<T>(static_cast<float>(x[from]) * scale[channel] + shift[channel]);
  }
}

}  // namespace

void launch_transpose(const Launch& on, DType dtype, const void* from, void* to, std::int64_t images,
                      std::int64_t rows, std::int64_t columns) {
  if (images * rows * columns == 0) return;
  with_float_type<BF16>("to_layout", dtype,
                        [&]<class T>(T) { launch<T>(on, from, to, images, rows, columns); });
  check_launch("to_layout", on);
}

void launch_normalize_images(const Launch& on, const std::uint8_t* x, const float* scale, const float* shift,
                             const Image& image, DType dtype, void* y) {
  const std::int64_t count = image.elements();
  if (count == 0) return;
  with_float_type<BF16>("normalize_images", dtype, [&]<class T>(T) {
    normalize<<<grid_for(count, 256, on), 256, 0, on.stream>>>(image, x, scale, shift, static_cast<T*>(y));
  });
  check_launch("normalize_images", on);
}

}  // namespace lockstep::kernels
