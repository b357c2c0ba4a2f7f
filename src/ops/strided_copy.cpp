#include "ops/strided_copy.h"

#include <algorithm>
#include <cstdlib>

namespace lockstep::ops {
namespace {

void require_inside(const char* name, const StridedView& view) {
  std::int64_t min = view.offset, max = view.offset;
  for (int d = 0; d < view.shape.rank(); ++d) {
    const std::int64_t reach = (view.shape[d] - 1) * view.stride[static_cast<std::size_t>(d)];
    (reach < 0 ? min : max) += reach;
  }
  if (view.shape.numel() == 0 || (min >= 0 && max < view.tensor.numel())) return;
  throw UsageError("strided_copy: elements {} to {} of {} are outside its shape {}", min, max, name,
                   to_string(view.tensor.shape()));
}

}  // namespace

StridedView::StridedView(const Tensor& whole, const Shape& whole_shape) : tensor(whole), shape(whole_shape) {
  std::int64_t step = 1;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    stride[static_cast<std::size_t>(d)] = step;
    step *= shape[d];
  }
}

StridedView StridedView::of(const Tensor& other) const {
  StridedView view = *this;
  view.tensor = other;
  return view;
}

StridedView StridedView::narrowed(int axis, std::int64_t start, std::int64_t length) const {
  StridedView view = *this;
  view.shape = shape.with(axis, length);
  view.offset += start * stride[static_cast<std::size_t>(axis)];
  return view;
}

StridedView StridedView::permuted(std::span<const int> order) const {
  StridedView view = *this;
  for (std::size_t d = 0; d < order.size(); ++d) {
    view.shape = view.shape.with(static_cast<int>(d), shape[order[d]]);
    view.stride[d] = stride[static_cast<std::size_t>(order[d])];
  }
  return view;
}

StridedView StridedView::flipped(int axis) const {
  StridedView view = *this;
  std::int64_t& step = view.stride[static_cast<std::size_t>(axis)];
  view.offset += (shape[axis] - 1) * step;
  step = -step;
  return view;
}

StridedView StridedView::repeated(std::int64_t count, std::int64_t step) const {
  StridedView view = *this;
  view.shape = {count};
  for (const std::int64_t extent : shape) view.shape.append(extent);
  std::copy_backward(stride.begin(), stride.end() - 1, view.stride.end());
  view.stride[0] = step;
  return view;
}

StridedView StridedView::expanded(const Shape& to) const {
  StridedView view = *this;
  view.shape = to;
  view.stride = {};
  for (int d = 0; d < shape.rank(); ++d) {
    if (shape[d] == 1) continue;
    view.stride[static_cast<std::size_t>(d + to.rank() - shape.rank())] = stride[static_cast<std::size_t>(d)];
  }
  return view;
}

CopyDimensions StridedCopy::sizes() const {
  if (!(from.shape == to.shape))
    throw UsageError("strided_copy: cannot copy a view of shape {} to one of shape {}", to_string(from.shape),
                     to_string(to.shape));
  require_inside("from", from);
  require_inside("to", to);
  std::array<int, Shape::max_rank> order{};
  int rank = 0;
  for (int d = to.shape.rank() - 1; d >= 0; --d) {
    if (to.shape[d] == 1) continue;
    const std::int64_t step = to.stride[static_cast<std::size_t>(d)];
    if (step == 0 && to.shape.numel() > 0)
      throw UsageError("strided_copy: elements of the target share memory");
    int at = rank++;
    for (; at > 0; --at) {
      const int before = order[static_cast<std::size_t>(at - 1)];
      if (std::abs(to.stride[static_cast<std::size_t>(before)]) <= std::abs(step)) break;
      order[static_cast<std::size_t>(at)] = before;
    }
    order[static_cast<std::size_t>(at)] = d;
  }
  CopyDimensions dimensions;
  for (int i = 0; i < rank; ++i) {
    const auto d = static_cast<std::size_t>(order[static_cast<std::size_t>(i)]);
    dimensions.add(to.shape[static_cast<int>(d)], {from.stride[d], to.stride[d]});
  }
  if (dimensions.rank == 0) {  // one element
    dimensions.rank = 1;
    dimensions.size[0] = 1;
    dimensions.stride[0] = {1, 1};
  }
  return dimensions;
}

int StridedCopy::tiled_dimension(const CopyDimensions& dimensions) {
  int across = 0;
  if (dimensions.stride[0][1] != 1 || dimensions.stride[0][0] == 1) return across;
  for (int d = 1; d < dimensions.rank; ++d) across = dimensions.stride[d][0] == 1 ? d : across;
  return across;
}

Cost StridedCopy::cost() const {
  return {.bytes = static_cast<double>(to.shape.numel()) * static_cast<double>(bytes_of(to.tensor.dtype())) *
                   (accumulate ? 3 : 2)};
}

}  // namespace lockstep::ops
