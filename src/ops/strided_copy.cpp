#include "lockstep/ops/strided_copy.h"

#include <cstdlib>

namespace lockstep::ops {
namespace {

void require_inside(const char* name, const StridedView& view) {
  std::int64_t least = view.offset, most = view.offset;
  for (int d = 0; d < view.shape.rank(); ++d) {
    const std::int64_t reach = (view.shape[d] - 1) * view.stride[static_cast<std::size_t>(d)];
    (reach < 0 ? least : most) += reach;
  }
  if (view.shape.numel() == 0 || (least >= 0 && most < view.tensor.numel())) return;
  throw UsageError("strided_copy: elements {} to {} of {} are outside its shape {}", least, most, name,
                   to_string(view.tensor.shape()));
}

Shape with_extent(const Shape& shape, int axis, std::int64_t extent) {
  std::array<std::int64_t, Shape::max_rank> extents{};
  std::copy(shape.begin(), shape.end(), extents.begin());
  extents[static_cast<std::size_t>(axis)] = extent;
  return Shape(std::span<const std::int64_t>(extents.data(), static_cast<std::size_t>(shape.rank())));
}

}  // namespace

StridedView::StridedView(const Tensor& whole, const Shape& given) : tensor(whole), shape(given) {
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
  view.shape = with_extent(shape, axis, length);
  view.offset += start * stride[static_cast<std::size_t>(axis)];
  return view;
}

StridedView StridedView::permuted(std::span<const int> order) const {
  StridedView view = *this;
  for (std::size_t d = 0; d < order.size(); ++d) {
    view.shape = with_extent(view.shape, static_cast<int>(d), shape[order[d]]);
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

std::int64_t CopySizes::count() const {
  std::int64_t product = 1;
  for (int d = 0; d < rank; ++d) product *= size[d];
  return product;
}

CopySizes StridedCopy::sizes() const {
  if (!(from.shape == to.shape))
    throw UsageError("strided_copy: a view of shape {} is not copied to one of {}", to_string(from.shape),
                     to_string(to.shape));
  require_inside("from", from);
  require_inside("to", to);
  CopySizes sorted;
  for (int d = to.shape.rank() - 1; d >= 0; --d) {
    const auto own = static_cast<std::size_t>(d);
    if (to.shape[d] == 1) continue;
    if (to.stride[own] == 0 && to.shape.numel() > 0)
      throw UsageError("strided_copy: elements of the target share memory");
    int at = sorted.rank++;
    for (; at > 0 && std::abs(sorted.to[at - 1]) > std::abs(to.stride[own]); --at) {
      sorted.size[at] = sorted.size[at - 1];
      sorted.from[at] = sorted.from[at - 1];
      sorted.to[at] = sorted.to[at - 1];
    }
    sorted.size[at] = to.shape[d];
    sorted.from[at] = from.stride[own];
    sorted.to[at] = to.stride[own];
  }
  CopySizes merged;
  for (int d = 0; d < sorted.rank; ++d) {
    const int last = merged.rank - 1;
    if (last >= 0 && sorted.from[d] == merged.from[last] * merged.size[last] &&
        sorted.to[d] == merged.to[last] * merged.size[last]) {
      merged.size[last] *= sorted.size[d];
      continue;
    }
    merged.size[merged.rank] = sorted.size[d];
    merged.from[merged.rank] = sorted.from[d];
    merged.to[merged.rank++] = sorted.to[d];
  }
  if (merged.rank == 0) {  // one element
    merged.rank = 1;
    merged.size[0] = merged.from[0] = merged.to[0] = 1;
  }
  return merged;
}

Cost StridedCopy::cost() const {
  return {.bytes = static_cast<double>(to.shape.numel()) * static_cast<double>(bytes_of(to.tensor.dtype())) *
                   (accumulate ? 3 : 2)};
}

}  // namespace lockstep::ops
