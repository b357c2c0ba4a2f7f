// Runs of rows and spread operands.
#include "kernels/cpu/gemm.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t column_group =
    192;  // a multiple of the rows that kernels of any instruction set compute together
constexpr std::int64_t outer_run_rows = 192;  // a multiple of 6 and of 8
constexpr std::int64_t outer_block = 256;  // of the rows that are summed: a block of operands fits in a cache
constexpr std::int64_t flops_per_thread =
    1 << 17;  // with less, waking a second thread costs more than it saves

float* floats_of(const StorageRef& storage) { return static_cast<float*>(storage->data); }

void copy_rows(const float* from, std::int64_t from_stride, float* to, std::int64_t to_stride,
               std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r) {
    std::memcpy(to + r * to_stride, from + r * from_stride,
                static_cast<std::size_t>(columns) * sizeof(float));
  }
}

/// [rows, columns] to [columns, rows], in groups of columns that threads share.
void transpose_columns(int threads, const float* from, std::int64_t from_stride, std::int64_t rows,
                       std::int64_t columns, float* to, std::int64_t to_stride) {
  constexpr std::int64_t group = 16;
  parallel_items(threads, (columns + group - 1) / group,
                 65536 / (group * std::max<std::int64_t>(1, rows)) + 1, [=](std::int64_t item) {
                   const std::int64_t first = item * group, width = std::min(group, columns - first);
                   transpose(from + first, from_stride, rows, width, to + first * to_stride, to_stride);
                 });
}

/// Columns of one task: all, or so few that every thread gets a task.
std::int64_t task_columns(std::int64_t n, std::int64_t runs, int threads) {
  if (runs >= threads || runs == 0) return std::max<std::int64_t>(1, n);
  const std::int64_t pieces = (threads + runs - 1) / runs;
  return std::max(column_group, round_up((n + pieces - 1) / pieces, column_group));
}

}  // namespace

Gemm::Gemm(int threads, MemoryPool& pool) : threads_(threads), pool_(pool), rows_(product_rows()) {}

Matrix Gemm::spread(const Matrix& matrix, std::int64_t rows, std::int64_t columns, std::int64_t uses,
                    StorageRef& holder) const {
  const std::int64_t worthwhile_uses = matrix.transposed ? 64 : 32;
  if (!rows_.spreads || rows == 0 || columns == 0 || uses < worthwhile_uses) return matrix;
  if (matrix.transposed) {
    const std::int64_t stride = spread_stride(rows);
    holder = pool_.allocate(static_cast<std::size_t>(columns * stride) * sizeof(float));
    transpose_columns(threads_, matrix.data, matrix.stride, rows, columns, floats_of(holder), stride);
    return {floats_of(holder), stride};
  }
  if (matrix.stride != spread_stride(matrix.stride)) {
    const std::int64_t stride = spread_stride(columns);
    holder = pool_.allocate(static_cast<std::size_t>(rows * stride) * sizeof(float));
    float* copy = floats_of(holder);
    parallel_ranges(threads_, rows, 65536 / columns + 1, [&](std::int64_t begin, std::int64_t end) {
      copy_rows(matrix.data + begin * matrix.stride, matrix.stride, copy + begin * stride, stride,
                end - begin, columns);
    });
    return {copy, stride};
  }
  return matrix;
}

void Gemm::rows(std::int64_t m, std::int64_t n, std::int64_t k, const Matrix& a, const Matrix& b,
                const float* bias, float* c) const {
  if (m == 0 || n == 0) return;
  omp_set_num_threads(1);
  StorageRef spread_b, last_a, last_c;
  const Matrix right = spread(b, b.transposed ? n : k, b.transposed ? k : n, m, spread_b);
  const std::int64_t per_thread =
      std::max(rows_.min_rows, round_up((m + threads_ - 1) / threads_, rows_.group));
  const std::int64_t run = rows_.run > 0 ? std::min(rows_.run, per_thread) : per_thread;
  const bool cuts_columns = rows_.min_rows == rows_.group || m > rows_.min_rows;
  const std::int64_t runs = (m + run - 1) / run, columns = cuts_columns ? task_columns(n, runs, threads_) : n;
  const std::int64_t column_tasks = (n + columns - 1) / columns;

  // The last run, if it does not have whole groups, is computed in scratch memory with rows of zeros after
  // it.
  const std::int64_t last_first = (runs - 1) * run, last_rows = m - last_first;
  const std::int64_t last_whole = std::max(rows_.min_rows, round_up(last_rows, rows_.group));
  const bool completes = last_whole != last_rows;
  if (completes) {
    last_a = pool_.allocate(static_cast<std::size_t>(last_whole * k) * sizeof(float));
    last_c = pool_.allocate(static_cast<std::size_t>(last_whole * n) * sizeof(float));
    copy_rows(a.data + last_first * a.stride, a.stride, floats_of(last_a), k, last_rows, k);
    std::fill(floats_of(last_a) + last_rows * k, floats_of(last_a) + last_whole * k, 0.0f);
  }
  const std::int64_t flops_per_task = 2 * run * columns * std::max<std::int64_t>(1, k);
  parallel_items(
      threads_, runs * column_tasks, (flops_per_thread + flops_per_task - 1) / flops_per_task,
      [&](std::int64_t task) {
        const std::int64_t first = task / column_tasks * run, rows = std::min(run, m - first);
        const std::int64_t column = task % column_tasks * columns, width = std::min(columns, n - column);
        const Matrix right_columns{right.data + (right.transposed ? column * right.stride : column),
                                   right.stride, right.transposed};
        float* result = c + first * n + column;
        if (completes && first == last_first) {
          float* whole = floats_of(last_c) + column;
          multiply(last_whole, width, k, {floats_of(last_a), k}, right_columns, 0.0f, whole, n);
          copy_rows(whole, n, result, n, rows, width);
        } else {
          multiply(rows, width, k, {a.data + first * a.stride, a.stride}, right_columns, 0.0f, result, n);
        }
        if (!bias) return;
        for (std::int64_t r = 0; r < rows; ++r) {
          float* row = result + r * n;
#pragma GCC ivdep
          for (std::int64_t j = 0; j < width; ++j) row[j] += bias[column + j];
        }
      });
}

void Gemm::sum_of_outer(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b,
                        bool accumulate, float* c) const {
  if (m == 0 || n == 0) return;
  omp_set_num_threads(1);
  const std::int64_t runs = (m + outer_run_rows - 1) / outer_run_rows,
                     columns = task_columns(n, runs, threads_);
  const std::int64_t column_tasks = (n + columns - 1) / columns;
  // The summed rows are processed in blocks, so that operands stay in a cache, and `a` is transposed into
  // scratch memory.
  const bool transposes = rows_.spreads && n >= 64 && m >= rows_.group;
  const std::int64_t block = transposes ? outer_block : std::max<std::int64_t>(1, k),
                     transposed_stride = spread_stride(outer_block);
  StorageRef transposed, spread_b;
  if (transposes)
    transposed = pool_.allocate(static_cast<std::size_t>(m * transposed_stride) * sizeof(float));
  for (std::int64_t first_row = 0; first_row == 0 || first_row < k; first_row += block) {
    const std::int64_t rows = std::min(block, k - first_row);
    if (transposes)
      transpose_columns(threads_, a + first_row * m, m, rows, m, floats_of(transposed), transposed_stride);
    const Matrix right = spread({b + first_row * n, n}, rows, n, m, spread_b);
    const float beta = accumulate || first_row > 0 ? 1.0f : 0.0f;
    const std::int64_t flops_per_task =
        2 * std::min(m, outer_run_rows) * columns * std::max<std::int64_t>(1, rows);
    parallel_items(threads_, runs * column_tasks, (flops_per_thread + flops_per_task - 1) / flops_per_task,
                   [&](std::int64_t task) {
                     const std::int64_t first = task / column_tasks * outer_run_rows;
                     const std::int64_t column = task % column_tasks * columns;
                     const Matrix left =
                         transposes
                             ? Matrix{floats_of(transposed) + first * transposed_stride, transposed_stride}
                             : Matrix{a + first, m, true};
                     multiply(std::min(outer_run_rows, m - first), std::min(columns, n - column), rows, left,
                              {right.data + column, right.stride}, beta, c + first * n + column, n);
                   });
  }
}

}  // namespace lockstep::kernels
