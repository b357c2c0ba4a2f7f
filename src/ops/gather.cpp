#include "lockstep/ops/gather.h"

#include <algorithm>

#include "lockstep/ops/check.h"

namespace lockstep::ops {
namespace {

GatherSizes gather_sizes(const char* operation, const Tensor& x, const Tensor& indices, int axis,
                         const Tensor& y) {
  const int rank = x.shape().rank();
  bool fits = axis >= 0 && axis < rank && y.shape().rank() == rank;
  for (int d = 0; fits && d < rank; ++d) fits = d == axis || x.size(d) == y.size(d);
  const bool by_element = fits && indices.shape() == y.shape();
  if (!fits || !(by_element || indices.shape() == Shape{y.size(axis)}))
    throw UsageError("{}: indices of shape {} along axis {} of {} do not give {}", operation,
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
GatherSizes SegmentRows::sizes() const {
  require_shape(function, "the indices", indices, {x.shape().rank() > 0 ? x.size(0) : 1});
  return gather_sizes(function, y, indices, 0, x);
}

KeepSteps::Sizes KeepSteps::sizes() const {
  const int rank = x.shape().rank();
  if (rank < 2 || !(lengths.shape() == Shape{x.size(0)}))
    throw UsageError("{}: lengths of shape {} do not fit sequences of shape {}", function,
                     to_string(lengths.shape()), to_string(x.shape()));
  require_shape(function, "y", y, x.shape());
  if (y.dtype() != x.dtype() ||
      !(x.dtype() == DType::int64 || x.dtype() == DType::float32 || x.dtype() == DType::bfloat16))
    throw UsageError("{}: sequences of {} do not become {}", function, to_string(x.dtype()),
                     to_string(y.dtype()));
  const std::int64_t rows = x.size(0) * x.size(1);
  return {x.size(0), x.size(1), rows == 0 ? 0 : x.numel() / rows};
}

namespace {

TableSizes table_sizes(const char* operation, const Tensor& indices, const Tensor& weight, const Tensor& y) {
  if (weight.shape().rank() != 2)
    throw UsageError("{}: the table has shape {}, not [rows, width]", operation, to_string(weight.shape()));
  const TableSizes table{weight.size(0), weight.size(1), indices.numel()};
  if (y.shape().rank() < 1 || y.size(-1) != table.width || y.numel() != table.uses * table.width)
    throw UsageError("{}: {} indices of rows of width {} do not give {}", operation, table.uses, table.width,
                     to_string(y.shape()));
  return table;
}

}  // namespace

TableSizes Embedding::sizes() const { return table_sizes(name, indices, weight, y); }
Cost Embedding::cost() const { return {.bytes = static_cast<double>(indices.bytes() + 2 * y.bytes())}; }
// Without accumulate the whole table is zeroed first; rows without an index are not read.
Cost EmbeddingBackward::cost() const {
  const auto [rows, width, uses] = sizes();
  const double sums = static_cast<double>(std::min(rows, uses) * width) * sizeof(float);
  return {.bytes = static_cast<double>(dy.bytes() + indices.bytes()) + 2 * sums +
                   (accumulate ? 0.0 : static_cast<double>(dweight.bytes()))};
}
TableSizes EmbeddingBackward::sizes() const { return table_sizes(name, indices, dweight, dy); }

}  // namespace lockstep::ops
