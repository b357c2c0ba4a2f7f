#include "ops/reduction.h"

#include "lockstep/ops/check.h"

namespace lockstep::ops {

ReductionSizes reduction_sizes(const char* operation, const Tensor& x, const Tensor& y) {
  const int missing = x.shape().rank() - y.shape().rank();
  if (!broadcasts_to(y.shape(), x.shape()))
    throw UsageError("{}: cannot reduce shape {} to {}, which does not broadcast to it", operation,
                     to_string(x.shape()), to_string(y.shape()));

  // Neighbours that are both folded, or both kept, are one run.
  struct Run {
    std::int64_t size, stride;
    bool folded;
  };
  std::array<Run, Shape::max_rank> runs;
  std::size_t count = 0;
  std::int64_t step = 1;
  for (int d = x.shape().rank() - 1; d >= 0; --d) {
    const std::int64_t extent = x.size(d);
    const bool folds = d < missing || y.size(d - missing) != extent;
    if (extent != 1) {
      if (count > 0 && runs[count - 1].folded == folds)
        runs[count - 1].size *= extent;
      else
        runs[count++] = {extent, step, folds};
    }
    step *= extent;
  }
  ReductionSizes sizes;
  std::size_t next = 0;
  if (next < count && !runs[next].folded) sizes.period = runs[next++].size;
  if (next < count) sizes.rows = runs[next++].size;
  for (; next < count; ++next)
    (runs[next].folded ? sizes.slabs : sizes.groups).add(runs[next].size, {runs[next].stride});
  return sizes;
}

void check_fold_of_none(const char* operation, const Tensor& x, const Tensor& y) {
  if (x.numel() == 0 && y.numel() > 0)
    throw UsageError("{}: cannot reduce shape {}, which has no elements, to {}", operation,
                     to_string(x.shape()), to_string(y.shape()));
}

LineSizes CumulativeSum::sizes() const {
  require_shape(name, "y", y, x.shape());
  if (axis < 0 || axis >= x.shape().rank())
    throw UsageError("{}: shape {} has no axis {}", name, to_string(x.shape()), axis);
  LineSizes sizes{.extent = x.size(axis)};
  for (int d = 0; d < x.shape().rank(); ++d) {
    if (d != axis) (d < axis ? sizes.outer : sizes.inner) *= x.size(d);
  }
  return sizes;
}

}  // namespace lockstep::ops
