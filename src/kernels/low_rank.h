// The sizes of low-rank factors, checked for every device.
#pragma once

#include "kernels/check.h"
#include "lockstep/kernels/parameters.h"

namespace lockstep::kernels {

/// S = P Q: [n, m] = [n, rank] [rank, m].
struct LowRankSizes {
  std::int64_t n = 0, m = 0, rank = 0;
};

inline LowRankSizes require_factors(const char* operation, const LowRank& factors) {
  require_matrix(operation, "p", factors.p);
  require_matrix(operation, "q", factors.q);
  const LowRankSizes sizes{.n = factors.p.size(0), .m = factors.q.size(1), .rank = factors.p.size(1)};
  if (sizes.rank < 1) throw UsageError("{}: factors of rank 0 stand for nothing", operation);
  require_shape(operation, "q", factors.q, {sizes.rank, sizes.m});
  require_shape(operation, "the matrix", factors.matrix, {sizes.n, sizes.m});
  if (factors.rest) require_shape(operation, "the rest", factors.rest, {sizes.n, sizes.m});
  require_numel(operation, "failed", factors.failed, 1);
  require_numel(operation, "valid", factors.valid, 1);
  return sizes;
}

}  // namespace lockstep::kernels
