// Products by oneDNN.
//
// Its AVX2 kernels compute rows in groups of 6 and sum a leftover group in another order; which code runs
// also depends on how many rows there are (78 and 90 are summed differently from 72, 84 and 96), and on
// threads. So a call has at most 48 rows, a multiple of the group (a leftover is completed in scratch
// memory); threads share the runs. Its AVX-512 kernels take any number of rows, in groups of 8, but not fewer
// than 16: with fewer, a transposed B has a separate kernel, which sums in another order. With 16 the columns
// are not cut for threads either: 16 rows by 64 columns are summed differently from 16 rows by 256.
#include <dnnl.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/onednn.h"
#include "kernels/math_library.h"
#include "lockstep/base/error.h"

namespace lockstep::kernels {

const MathLibrary& math_library() {
  static const MathLibrary library{
      .instruction_set = onednn_instruction_set(), .version = onednn_version(), .build = onednn_build()};
  return library;
}

const ProductRows& product_rows() {
  static const ProductRows rows = onednn_has_avx512()
                                      ? ProductRows{.group = 8, .min_rows = 16, .run = 0, .spreads = false}
                                      : ProductRows{.group = 6, .min_rows = 6, .run = 48, .spreads = true};
  return rows;
}

void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const Matrix& a, const Matrix& b, float beta,
              float* c, std::int64_t stride) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) c[i * stride + j] = beta == 0.0f ? 0.0f : beta * c[i * stride + j];
    }
    return;
  }
  const dnnl_status_t status = dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1.0f,
                                          a.data, a.stride, b.data, b.stride, beta, c, stride);
  if (status != dnnl_success) {
    throw FailureError("oneDNN could not multiply [{}, {}] by [{}, {}] (status {}): out of memory?", m, k, k,
                       n, static_cast<int>(status));
  }
}

}  // namespace lockstep::kernels
