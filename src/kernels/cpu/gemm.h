// Matrix products in float32, cut so that the bits of a row depend on that row alone: neither on the number
// of rows nor on the number of threads. Every call to the library is single-threaded; the library's file,
// gemm_onednn.cpp or gemm_openblas.cpp, sets its number of rows.
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

/// C = A B + beta C on the calling thread; C: [m, n] with rows `stride` apart. The caller has set OpenMP to
/// one thread, and product_rows() has been called.
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const Matrix& a, const Matrix& b, float beta,
              float* c, std::int64_t stride);

/// The rows of the library's products on this processor.
struct ProductRows {
  std::int64_t group;     ///< rows that a kernel computes together
  std::int64_t min_rows;  ///< of one call: whole groups
  std::int64_t run;       ///< of one call; 0: all rows of a thread
  bool spreads;           ///< whether strides of multiples of 1 KiB are slow
};
const ProductRows& product_rows();

inline std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Floats from row to row of a copy: not a multiple of 1 KiB, which would let a cache hold few rows.
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
  /// cost the AVX2 kernels up to a factor of three. A transposed matrix of many uses is stored untransposed;
  /// the bits of products are the same.
  Matrix spread(const Matrix& matrix, std::int64_t rows, std::int64_t columns, std::int64_t uses,
                StorageRef& holder) const;

  int threads_;
  MemoryPool& pool_;
  ProductRows rows_;
};

}  // namespace lockstep::kernels
