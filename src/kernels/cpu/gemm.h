// Matrix products in float32 by oneDNN, cut so that the bits of a row depend on that row alone.
//
// oneDNN's AVX2 kernels compute rows in groups of 6 and sum a leftover group in another order; which code
// runs also depends on how many rows there are (78 and 90 are summed otherwise than 72, 84 and 96), and on
// threads. Here every call is single-threaded over a run of at most 48 rows, a multiple of the group (a
// leftover is completed in scratch memory); threads share the runs. So neither the number of rows nor the
// number of threads changes the result of a row. Its AVX-512 kernels take as many rows as there are, in
// groups of 8, but not fewer than 16: below, a transposed B has a separate kernel, which sums in another
// order. With 16 the columns are not cut for threads either: 16 rows by 64 columns are summed otherwise than
// by 256.
#pragma once

#include <cstdint>

#include "lockstep/tensor/storage.h"

namespace lockstep::kernels {

/// A row-major matrix, or its transpose: element (i, j) at data[i * stride + j], or data[j * stride + i] if
/// transposed.
struct Matrix {
  const float* data = nullptr;
  std::int64_t stride = 0;
  bool transposed = false;
};

/// C = A B + beta C on the calling thread, all of it in one call to oneDNN; C: [m, n] with rows `stride`
/// apart. The caller has set OpenMP to one thread.
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const Matrix& a, const Matrix& b, float beta,
              float* c, std::int64_t stride);

inline std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Floats from row to row of a copy: no multiple of 1 KiB, where few of its rows would fit into a cache.
inline std::int64_t spread_stride(std::int64_t columns) {
  return columns % 256 == 0 ? columns + 16 : columns;
}

/// Products over the threads of a backend.
class Gemm {
 public:
  Gemm(int threads, MemoryPool& pool);

  /// C = A B (+ bias of n elements to every row, or none), rows independent of each other and of m. A is not
  /// transposed.
  void rows(std::int64_t m, std::int64_t n, std::int64_t k, const Matrix& a, const Matrix& b,
            const float* bias, float* c) const;

  /// C (+)= A^T B with A: [k, m], B: [k, n]: sums over many rows, as weight gradients are.
  void sum_of_outer(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b,
                    bool accumulate, float* c) const;

 private:
  /// `matrix`, rows x columns in memory, as a product reads it fastest: itself, or a copy in `holder`. A
  /// copy's rows do not start a multiple of 1 KiB apart: such strides put a column into few cache sets, and
  /// cost the AVX2 kernels up to a factor of three. A transposed matrix of many uses is turned; the bits of
  /// products are the same.
  Matrix spread(const Matrix& matrix, std::int64_t rows, std::int64_t columns, std::int64_t uses,
                StorageRef& holder) const;

  int threads_;
  MemoryPool& pool_;
  std::int64_t row_group_;    // rows that a kernel computes together
  std::int64_t fewest_rows_;  // of one call: whole groups
  std::int64_t run_rows_;     // rows of one call; 0: as many as there are for a thread
  bool spreads_;
};

}  // namespace lockstep::kernels
