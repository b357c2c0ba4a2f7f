#include "lockstep/ops/gather.h"

namespace lockstep::ops {
namespace {

GatherSizes gather_sizes(const char* operation, const Tensor& x, const Tensor& indices, int axis,
                         const Tensor& y) {
  const int rank = x.shape().rank();
  bool fits = axis >= 0 && axis < rank && y.shape().rank() == rank;
  for (int d = 0; fits && d < rank; ++d) fits = d == axis || x.size(d) == y.size(d);
  const bool by_element = fits && indices.shape() == y.shape();
  if (!fits || !(by_element || indices.shape() == Shape{y.size(axis)}))
    throw UsageError("{}: indices of shape {} along axis {} of {} do not make {}", operation,
                     to_string(indices.shape()), axis, to_string(x.shape()), to_string(y.shape()));
  GatherSizes sizes{.extent = x.size(axis), .taken = y.size(axis), .by_element = by_element && rank > 1};
  for (int d = 0; d < rank; ++d) {
    if (d != axis) (d < axis ? sizes.outer : sizes.inner) *= x.size(d);
  }
  return sizes;
}

}  // namespace

GatherSizes Gather::sizes() const { return gather_sizes(name, x, indices, axis, y); }
Cost Gather::cost() const { return {.bytes = static_cast<double>(indices.bytes() + 2 * y.bytes())}; }
GatherSizes GatherBackward::sizes() const { return gather_sizes(name, dx, indices, axis, dy); }

}  // namespace lockstep::ops
