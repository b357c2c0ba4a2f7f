// Low-rank factors of gradients.
#include "kernels/low_rank.h"

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/operands.h"

namespace lockstep::kernels {

void CudaBackend::draw_normal(const RandomKey& key, const Tensor& out) {
  const Operands args{"draw_normal", device()};
  launch_draw_normal(launch(), key, out.numel(), args.plain_floats("the numbers", out));
}

void CudaBackend::orthonormalise(const Tensor& x, const Orthonormal& how, const Tensor& y) {
  const Operands args{"orthonormalise", device()};
  require_matrix(args.operation, "x", x);
  require_shape(args.operation, "y", y, x.shape());
  const std::int64_t rows = x.size(0), columns = x.size(1);
  const bool of_rows = how.vectors == Orthonormal::Vectors::rows;
  const VectorLayout vectors{.count = of_rows ? rows : columns,
                             .length = of_rows ? columns : rows,
                             .vector_stride = of_rows ? columns : 1,
                             .element_stride = of_rows ? 1 : columns};
  const Tensor work = scratch(x.numel(), DType::float64);
  launch_orthonormalise(launch(), args.plain_floats("x", x), vectors,
                        args.optional_floats("the condition", how.condition), how.draw ? &*how.draw : nullptr,
                        work.data<double>(), args.plain_floats("y", y));
}

void CudaBackend::expand(const LowRank& factors) {
  const Operands args{"expand", device()};
  const auto [n, m, rank] = require_factors(args.operation, factors);
  launch_expand(launch(), {.n = n,
                           .m = m,
                           .rank = rank,
                           .p = args.plain_floats("p", factors.p),
                           .q = args.plain_floats("q", factors.q),
                           .failed = args.floats("failed", factors.failed),
                           .share = factors.share,
                           .matrix = args.plain_floats("the matrix", factors.matrix),
                           .rest = args.optional_floats("the rest", factors.rest),
                           .valid = args.floats("valid", factors.valid)});
}

}  // namespace lockstep::kernels
