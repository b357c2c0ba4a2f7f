#include <cblas.h>
#include <dlfcn.h>

#include "slow.h"

extern "C" void cblas_sgemm(OPENBLAS_CONST enum CBLAS_ORDER order, OPENBLAS_CONST enum CBLAS_TRANSPOSE transa,
                            OPENBLAS_CONST enum CBLAS_TRANSPOSE transb, OPENBLAS_CONST blasint m,
                            OPENBLAS_CONST blasint n, OPENBLAS_CONST blasint k, OPENBLAS_CONST float alpha,
                            OPENBLAS_CONST float* a, OPENBLAS_CONST blasint lda, OPENBLAS_CONST float* b,
                            OPENBLAS_CONST blasint ldb, OPENBLAS_CONST float beta, float* c,
                            OPENBLAS_CONST blasint ldc) {
  static const auto real = reinterpret_cast<decltype(&cblas_sgemm)>(::dlsym(RTLD_NEXT, "cblas_sgemm"));
  delay_on_slow_rank();
  real(order, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
