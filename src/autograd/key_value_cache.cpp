#include "lockstep/autograd/key_value_cache.h"

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/ops/check.h"
#include "ops/strided_copy.h"

namespace lockstep {
namespace {

/// The heads of columns as [batch, heads, rows, width].
ops::StridedView heads_of(const ops::Columns& columns, const ops::AttentionSizes& sizes) {
  const ops::HeadStrides strides = ops::head_strides(columns, sizes.width);
  ops::StridedView view(columns.matrix);
  view.shape = {sizes.batch, sizes.key_heads, sizes.keys, sizes.width};
  view.offset = columns.first;
  view.stride = {strides.image, strides.head, strides.row, 1};
  return view;
}

}  // namespace

void KeyValueCache::begin_pass() {
  length_ = length();
  added_ = 0;
  next_ = 0;
}

KeyValueCache::Rows KeyValueCache::append(kernels::Backend& backend, const ops::Columns& keys,
                                          const ops::Columns& values, const ops::AttentionSizes& sizes) {
  const Shape shape{sizes.batch, sizes.key_heads, capacity_, sizes.width};
  if (next_ == layers_.size()) {
    const DType dtype = keys.matrix.dtype();
    layers_.push_back({backend.empty(shape, dtype), backend.empty(shape, dtype)});
  }
  const Layer& layer = layers_[next_++];
  ops::require_shape("a cache of keys and values", "an attention's cache", layer.keys, shape);
  if (length_ + sizes.keys > capacity_)
    throw UsageError("{} positions do not fit into a cache of {} that holds {}", sizes.keys, capacity_,
                     length_);
  added_ = sizes.keys;
  for (const auto& [from, to] : {std::pair(&keys, &layer.keys), std::pair(&values, &layer.values)})
    backend.run(
        ops::StridedCopy{heads_of(*from, sizes), ops::StridedView(*to).narrowed(2, length_, sizes.keys)});
  return {ops::all_columns(layer.keys), ops::all_columns(layer.values), length_ + sizes.keys};
}

}  // namespace lockstep
