// A preloaded library that makes a rank slow: each matrix product of rank LOCKSTEP_SLOW_RANK takes some
// milliseconds longer, with the same result.
#include <dlfcn.h>
#include <dnnl.h>
#include <unistd.h>

#include "base/launcher.h"

extern "C" dnnl_status_t dnnl_sgemm(char transa, char transb, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k,
                                    float alpha, const float* a, dnnl_dim_t lda, const float* b,
                                    dnnl_dim_t ldb, float beta, float* c, dnnl_dim_t ldc) {
  static const auto real = reinterpret_cast<decltype(&dnnl_sgemm)>(::dlsym(RTLD_NEXT, "dnnl_sgemm"));
  static const bool slow = [] {
    const int wanted = lockstep::launcher::number({"LOCKSTEP_SLOW_RANK"});
    return wanted >= 0 && lockstep::launcher::rank() == wanted;
  }();
  if (slow) ::usleep(20000);
  return real(transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
