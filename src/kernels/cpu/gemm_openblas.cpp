// Products by OpenBLAS, for processors on which oneDNN has no fast products.
//
// On Arm, each element is the sum of its fused products in order, for every kernel and any number of rows and
// columns. This holds for up to 256 products; longer sums OpenBLAS splits by the processor, so this file
// splits them first. A single row or column would be a matrix times a vector, which is summed differently;
// this file has a loop for it. tests/kernels/ordered_sums.cpp checks this on the processor at hand.
#include <cblas.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/onednn.h"
#include "kernels/math_library.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t max_summed = 256;

/// Elements i of a product at c[i * c_step]: sums over l < k of v[l * v_step] * matrix[i * step + l *
/// sum_step].
void multiply_vector(std::int64_t count, std::int64_t k, const float* v, std::int64_t v_step,
                     const float* matrix, std::int64_t step, std::int64_t sum_step, float beta, float* c,
                     std::int64_t c_step) {
  constexpr std::int64_t together = 32;
  for (std::int64_t first = 0; first < count; first += together) {
    const std::int64_t here = std::min(together, count - first);
    float sums[together] = {};
    for (std::int64_t l = 0; l < k; ++l) {
      for (std::int64_t i = 0; i < here; ++i)
        sums[i] = std::fma(v[l * v_step], matrix[(first + i) * step + l * sum_step], sums[i]);
    }
    for (std::int64_t i = 0; i < here; ++i) {
      float& target = c[(first + i) * c_step];
      target = beta == 0.0f ? sums[i] : std::fma(beta, target, sums[i]);
    }
  }
}

}  // namespace

const MathLibrary& math_library() {
  static const MathLibrary library = [] {
    const std::string_view config = ::openblas_get_config();  // "OpenBLAS 0.3.29 DYNAMIC_ARCH ..."
    return MathLibrary{
        .instruction_set = ::openblas_get_corename(),
        .version = fmt::format("{}, {}", onednn_version(), config.substr(0, config.find(' ', 9))),
        .build = fmt::format("{}, {}", onednn_build(), config)};
  }();
  return library;
}

const ProductRows& product_rows() {
  static const ProductRows rows = [] {
    ::openblas_set_num_threads(1);
    return ProductRows{.group = 1, .min_rows = 1, .run = 0, .spreads = false};
  }();
  return rows;
}

void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const Matrix& a, const Matrix& b, float beta,
              float* c, std::int64_t stride) {
  const std::int64_t a_row = a.transposed ? 1 : a.stride, a_sum = a.transposed ? a.stride : 1,
                     b_column = b.transposed ? b.stride : 1, b_sum = b.transposed ? 1 : b.stride;
  const auto transposed = [](const Matrix& matrix) { return matrix.transposed ? CblasTrans : CblasNoTrans; };
  for (std::int64_t first = 0; first == 0 || first < k; first += max_summed) {
    const std::int64_t count = std::min(max_summed, k - first);
    const float *const left = a.data + first * a_sum, *const right = b.data + first * b_sum;
    if (m == 1) {
      multiply_vector(n, count, left, a_sum, right, b_column, b_sum, beta, c, 1);
    } else if (n == 1) {
      multiply_vector(m, count, right, b_sum, left, a_row, a_sum, beta, c, stride);
    } else {
      ::cblas_sgemm(CblasRowMajor, transposed(a), transposed(b), static_cast<blasint>(m),
                    static_cast<blasint>(n), static_cast<blasint>(count), 1.0f, left,
                    static_cast<blasint>(a.stride), right, static_cast<blasint>(b.stride), beta, c,
                    static_cast<blasint>(stride));
    }
    beta = 1.0f;
  }
}

}  // namespace lockstep::kernels
