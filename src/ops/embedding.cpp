#include "lockstep/ops/embedding.h"

#include "lockstep/ops/check.h"

namespace lockstep::ops {
namespace {

TableSizes table_sizes(const char* operation, const Tensor& indices, const Tensor& weight, const Tensor& y) {
  if (weight.shape().rank() != 2)
    throw UsageError("{}: the table has shape {}, not [rows, width]", operation, to_string(weight.shape()));
  const TableSizes table{weight.size(0), weight.size(1), indices.numel()};
  if (y.shape().rank() < 1 || y.size(-1) != table.width || y.numel() != table.uses * table.width)
    throw UsageError("{}: {} indices into rows of {} do not fill {}", operation, table.uses, table.width,
                     to_string(y.shape()));
  return table;
}

}  // namespace

TableSizes Embedding::sizes() const { return table_sizes(name, indices, weight, y); }
Cost Embedding::cost() const { return {.bytes = static_cast<double>(indices.bytes() + 2 * y.bytes())}; }
TableSizes EmbeddingBackward::sizes() const { return table_sizes(name, indices, dweight, dy); }

}  // namespace lockstep::ops
