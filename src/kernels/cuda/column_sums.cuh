// Sums over the rows of a matrix, column by column: chunks of rows first, then the chunks one after another.
// The order depends only on the sizes and on the alignment of matrices to packs; all matrices of the pool or
// of a flat buffer are aligned.
#pragma once

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"

namespace lockstep::kernels {

inline constexpr int sum_threads = 256, fold_columns = 32, fold_threads = 32;

/// The number of chunks: enough to fill a device, few enough to fold. across: blocks for the columns of a
/// chunk.
constexpr std::int64_t row_chunks(std::int64_t rows, std::int64_t across = 1) {
  constexpr std::int64_t min_rows = 32, max_chunks = 512, blocks = 1536;
  return std::min({ceil_div(rows, min_rows), max_chunks, std::max<std::int64_t>(64, blocks / across)});
}

/// The sums of a chunk of rows, for a later fold. to: [parts][chunks][Sums][width].
template <int Sums, class Sum>
struct IntoPartial {
  Sum* to;
  std::int64_t width;
  __device__ void operator()(std::int64_t chunk, std::int64_t column, const Sum* totals) const {
    const std::int64_t number = std::int64_t{part_number()} * gridDim.y + chunk;
    for (int s = 0; s < Sums; ++s) to[(number * Sums + s) * width + column] = totals[s];
  }
};

/// The sums of the only chunk.
template <class Receive>
struct IntoReceiver {
  Receive receive;
  std::int64_t width;
  template <class Sum>
  __device__ void operator()(std::int64_t, std::int64_t column, const Sum* totals) const {
    receive(part_number() * width, column, totals);
  }
};

/// A block (columns / Width, rows) sums a chunk of the part's rows of its columns. terms.of<Width>(columns of
/// earlier parts, first column) is a function (first element, row, totals) that adds Width elements to
/// totals[Sums][Width].
template <int Sums, int Width, class Sum, class Terms, class Into>
__global__ void __launch_bounds__(sum_threads)
    sum_chunks(std::int64_t rows, std::int64_t width, std::int64_t rows_per_chunk, Terms terms, Into into) {
  __shared__ Sum shared[sum_threads * Sums * Width];  // [rows of threads][Sums][columns]
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int columns = static_cast<int>(blockDim.x) * Width, row_threads = static_cast<int>(blockDim.y);
  const std::int64_t left = static_cast<std::int64_t>(blockIdx.x) * columns, column = left + x * Width;
  const std::int64_t chunk = blockIdx.y, first = part_number() * rows, begin = first + chunk * rows_per_chunk;
  const std::int64_t end = begin + rows_per_chunk < first + rows ? begin + rows_per_chunk : first + rows;
  Sum totals[Sums][Width] = {};
  if (column < width) {
    const auto add = terms.template of<Width>(part_number() * width, column);
#pragma unroll 4
    for (std::int64_t row = begin + y; row < end; row += row_threads) add(row * width + column, row, totals);
  }
  for (int s = 0; s < Sums; ++s) {
    for (int lane = 0; lane < Width; ++lane)
      shared[(y * Sums + s) * columns + x * Width + lane] = totals[s][lane];
  }
  __syncthreads();
  const int threads = static_cast<int>(blockDim.x) * row_threads;
  for (int c = y * static_cast<int>(blockDim.x) + x; c < columns && left + c < width; c += threads) {
    Sum sums[Sums];
    for (int s = 0; s < Sums; ++s) {
      sums[s] = shared[s * columns + c];
      for (int other = 1; other < row_threads; ++other) sums[s] += shared[(other * Sums + s) * columns + c];
    }
    into(chunk, left + c, sums);
  }
}

/// Calls receive(columns of earlier parts, column, totals) for each column. Each row of threads adds up some
/// of the chunks, in order, and the first one adds up the rows of threads.
template <int Sums, class Sum, class Receive>
__global__ void __launch_bounds__(fold_columns* fold_threads)
    fold_chunks(std::int64_t chunks, std::int64_t width, const Sum* partial, Receive receive) {
  __shared__ Sum shared[fold_threads][Sums][fold_columns];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * fold_columns + x;
  Sum totals[Sums] = {};
  partial += part_number() * chunks * Sums * width;
  if (column < width) {
#pragma unroll 4
    for (std::int64_t chunk = y; chunk < chunks; chunk += fold_threads) {
      for (int s = 0; s < Sums; ++s) totals[s] += partial[(chunk * Sums + s) * width + column];
    }
  }
  for (int s = 0; s < Sums; ++s) shared[y][s][x] = totals[s];
  __syncthreads();
  if (y != 0 || column >= width) return;
  for (int s = 0; s < Sums; ++s) {
    for (int other = 1; other < fold_threads; ++other) totals[s] += shared[other][s][x];
  }
  receive(part_number() * width, column, totals);
}

/// partial: [parts][chunks][Sums][width].
template <int Sums, class Sum, class Receive>
void fold(const Launch& on, std::int64_t chunks, std::int64_t width, const Sum* partial,
          const Receive& receive, int parts) {
  const auto blocks = static_cast<unsigned>(ceil_div(width, fold_columns));
  fold_chunks<Sums><<<for_parts(blocks, parts), dim3(fold_columns, fold_threads), 0, on.stream>>>(
      chunks, width, partial, receive);
}

/// Columns that a thread sums: 16 bytes of T, or fewer where float64 sums would fill the registers.
template <class Sum, class T>
inline constexpr int columns_of_thread = sizeof(Sum) == 8 ? 4 : pack_width<T>;

/// Sums terms.of<Width> over the rows of each part, with Width = columns_of_thread<Sum, T> or 1. packs:
/// whether that many elements of T
/// can be read at once, from every column that is a multiple of Width.
template <int Sums, class Sum, class T, class Terms, class Receive>
void sum_columns(CudaBackend& gpu, std::int64_t rows, std::int64_t width, bool packs, const Terms& terms,
                 const Receive& receive, int parts) {
  if (width == 0) return;
  const Launch on = gpu.launch();
  const auto run = [&]<int lanes>(Width<lanes>) {
    const std::int64_t x = std::min<std::int64_t>(32, ceil_div(width, lanes)), y = sum_threads / x;
    const dim3 block(static_cast<unsigned>(x), static_cast<unsigned>(y));
    const std::int64_t across = ceil_div(width, x * lanes), chunks = row_chunks(rows, across);
    const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(chunks),
                    static_cast<unsigned>(parts));
    if (chunks == 1) {
      sum_chunks<Sums, lanes, Sum>
          <<<grid, block, 0, on.stream>>>(rows, width, rows, terms, IntoReceiver<Receive>{receive, width});
      return;
    }
    const Tensor scratch = gpu.scratch(parts * Sums * chunks * width, dtype_of<Sum>);
    Sum* const partial = scratch.data<Sum>();
    if (chunks > 0)
      sum_chunks<Sums, lanes, Sum><<<grid, block, 0, on.stream>>>(rows, width, ceil_div(rows, chunks), terms,
                                                                  IntoPartial<Sums, Sum>{partial, width});
    fold<Sums>(on, chunks, width, static_cast<const Sum*>(partial), receive, parts);
  };
  packs ? run(Width<columns_of_thread<Sum, T>>{}) : run(Width<1>{});
}

/// Whether sum_columns() may read packs of matrices of T of that width at these addresses.
template <class Sum, class T, class... At>
bool sums_packs(std::int64_t width, const At*... at) {
  constexpr int lanes = columns_of_thread<Sum, T>;
  return width % lanes == 0 && (true && ... && packs_at(at, lanes * sizeof(T)));
}

/// float32 gradient (+)= the sum, rounded.
template <int Sums>
struct IntoGradients {
  float* to[Sums];
  bool accumulate;

  template <class Sum>
  __device__ void operator()(std::int64_t earlier, std::int64_t column, const Sum* totals) const {
    for (int s = 0; s < Sums; ++s) {
      const auto total = static_cast<float>(totals[s]);
      float* const at = to[s] + earlier + column;
      *at = accumulate ? *at + total : total;
    }
  }
};

/// Sums of the elements themselves.
template <class T>
struct Elements {
  const T* x;

  template <int Width>
  __device__ auto of(std::int64_t, std::int64_t) const {
    return [*this](std::int64_t at, std::int64_t, auto& totals) {
      const auto in = load_pack<T, Width>(x + at);
      for (int lane = 0; lane < Width; ++lane) totals[0][lane] += to_float(in.lane[lane]);
    };
  }
};

}  // namespace lockstep::kernels
