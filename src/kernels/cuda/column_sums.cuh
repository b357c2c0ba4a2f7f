// Sums over the rows of a matrix, column by column, in an order that depends on the sizes alone: chunks of
// rows first, then the chunks one after another.
#pragma once

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"

namespace lockstep::kernels {

inline constexpr int column_threads = 32, row_threads = 8, fold_threads = 16;

constexpr std::int64_t row_chunks(std::int64_t rows) {
  constexpr std::int64_t min_rows = 32, max_chunks = 512;
  const std::int64_t chunks = (rows + min_rows - 1) / min_rows;
  return chunks < max_chunks ? chunks : max_chunks;
}

/// term(row, column, totals) adds to `Sums` totals of the column. partial: [chunks][Sums][width].
template <int Sums, class Sum, class Term>
__global__ void __launch_bounds__(column_threads* row_threads)
    sum_chunks(std::int64_t rows, std::int64_t width, std::int64_t rows_per_chunk, Term term, Sum* partial) {
  __shared__ Sum shared[row_threads][Sums][column_threads];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * column_threads + x, chunk = blockIdx.y;
  const std::int64_t begin = chunk * rows_per_chunk;
  const std::int64_t end = begin + rows_per_chunk < rows ? begin + rows_per_chunk : rows;
  Sum totals[Sums] = {};
  if (column < width) {
    for (std::int64_t row = begin + y; row < end; row += row_threads) term(row, column, totals);
  }
  for (int s = 0; s < Sums; ++s) shared[y][s][x] = totals[s];
  __syncthreads();
  if (y != 0 || column >= width) return;
  for (int s = 0; s < Sums; ++s) {
    Sum total = shared[0][s][x];
    for (int other = 1; other < row_threads; ++other) total += shared[other][s][x];
    partial[(chunk * Sums + s) * width + column] = total;
  }
}

/// receive(column, totals) of each column. Each row of threads adds up some of the chunks, in order, and the
/// first one adds up the rows of threads.
template <int Sums, class Sum, class Receive>
__global__ void __launch_bounds__(column_threads* fold_threads)
    fold_chunks(std::int64_t chunks, std::int64_t width, const Sum* partial, Receive receive) {
  __shared__ Sum shared[fold_threads][Sums][column_threads];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * column_threads + x;
  Sum totals[Sums] = {};
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
  receive(column, totals);
}

/// partial: [chunks][Sums][width].
template <int Sums, class Sum, class Receive>
void fold(const Launch& on, std::int64_t chunks, std::int64_t width, const Sum* partial,
          const Receive& receive) {
  const auto blocks = static_cast<unsigned>(ceil_div(width, column_threads));
  fold_chunks<Sums>
      <<<blocks, dim3(column_threads, fold_threads), 0, on.stream>>>(chunks, width, partial, receive);
}

template <int Sums, class Sum, class Term, class Receive>
void sum_columns(CudaBackend& gpu, std::int64_t rows, std::int64_t width, const Term& term,
                 const Receive& receive) {
  if (width == 0) return;
  const Launch on = gpu.launch();
  const std::int64_t chunks = row_chunks(rows);
  const Tensor scratch = gpu.scratch(Sums * chunks * width, dtype_of<Sum>);
  Sum* const partial = scratch.data<Sum>();
  if (chunks > 0) {
    const dim3 grid(static_cast<unsigned>(ceil_div(width, column_threads)), static_cast<unsigned>(chunks));
    sum_chunks<Sums><<<grid, dim3(column_threads, row_threads), 0, on.stream>>>(
        rows, width, ceil_div(rows, chunks), term, partial);
  }
  fold<Sums>(on, chunks, width, partial, receive);
}

/// float32 gradient (+)= the sum, rounded.
template <int Sums>
struct IntoGradients {
  float* to[Sums];
  bool accumulate;

  template <class Sum>
  __device__ void operator()(std::int64_t column, const Sum* totals) const {
    for (int s = 0; s < Sums; ++s) {
      const auto total = static_cast<float>(totals[s]);
      to[s][column] = accumulate ? to[s][column] + total : total;
    }
  }
};

}  // namespace lockstep::kernels
