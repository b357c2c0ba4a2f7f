#include "ops/matmul.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/ops/check.h"

namespace lockstep::ops {
namespace {

/// The extent of the dimension that is `back` before the last; 1 if the shape has fewer dimensions.
std::int64_t extent(const Shape& shape, int back) {
  return back < shape.rank() ? shape[shape.rank() - 1 - back] : 1;
}

/// The stride of that dimension; 0 if it is broadcast.
std::int64_t step(const Shape& shape, int back) {
  if (extent(shape, back) == 1) return 0;
  std::int64_t elements = 1;
  for (int d = 0; d < back; ++d) elements *= extent(shape, d);
  return elements;
}

/// The extent that two or three shapes broadcast to in that dimension; -1 if they do not broadcast.
template <class... Shapes>
std::int64_t common_extent(int back, const Shapes&... shapes) {
  std::int64_t common = 1;
  for (const std::int64_t one : {extent(shapes, back)...}) {
    if (one == 1 || one == common) continue;
    if (common != 1) return -1;
    common = one;
  }
  return common;
}

/// The remarks in a profile after the sizes of a product.
const char* remarks_of(const MatMul& op) {
  switch (op.transposed) {
    case Transposed::none:
      return op.activation ? ", with slope" : "";
    case Transposed::a:
      return op.dbias ? ", a transposed, with sums" : ", a transposed";
    case Transposed::b:
      return op.activation ? ", b transposed, with activation" : ", b transposed";
  }
  return "";
}

void check_epilogue(const MatMul& op, const MatMulSizes& sizes) {
  if (!op.bias && !op.activation && !op.dbias) return;
  const bool sums_rows = op.transposed == Transposed::a;
  const bool fits = sums_rows ? !op.bias && !op.activation : !op.dbias && !op.accumulate;
  if (!fits || !sizes.one_matrix || sizes.each.rank + sizes.summed.rank > 0)
    throw UsageError(
        "{}: bias and activation need one matrix b, a not transposed and y overwritten; dbias needs a "
        "transposed a and one matrix y",
        op.name);
  if (op.bias) require_shape(op.name, "the bias", op.bias, {sizes.n});
  if (op.dbias) require_shape(op.name, "dbias", op.dbias, {sizes.m});
  if (op.before) require_shape(op.name, "before", op.before, op.y.shape());
  if (op.slope_at) require_shape(op.name, "slope_at", op.slope_at, op.y.shape());
}

}  // namespace

double MatMulSizes::flops() const {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) *
         static_cast<double>(each.count() * summed.count());
}

std::string MatMulSizes::text() const {
  const std::int64_t products = each.count() * summed.count();
  return fmt::format("{}{} x {} -> {}{}", products == 1 ? "" : fmt::format("{} x ", products), m, k, n,
                     remarks);
}

MatMulSizes MatMul::sizes() const {
  const auto refuse = [&] {
    throw UsageError("{}: a of shape {} and b of shape {} do not give y of shape {}{}", name,
                     to_string(a.shape()), to_string(b.shape()), to_string(y.shape()), remarks_of(*this));
  };
  if (accumulate && y.dtype() != DType::float32)
    throw UsageError("{}: y is {}; accumulate needs float32", name, to_string(y.dtype()));
  if (y.dtype() != a.dtype() && y.dtype() != DType::float32)
    throw UsageError("{}: y is {}, but a is {}", name, to_string(y.dtype()), to_string(a.dtype()));
  const int ranks[] = {a.shape().rank(), b.shape().rank(), y.shape().rank()};
  if (std::min({ranks[0], ranks[1], ranks[2]}) < 2) refuse();
  const bool transposed_a = transposed == Transposed::a, transposed_b = transposed == Transposed::b;
  MatMulSizes sizes{.m = a.size(transposed_a ? -1 : -2),
                    .n = b.size(transposed_b ? -2 : -1),
                    .k = a.size(transposed_a ? -2 : -1),
                    .one_matrix = ranks[transposed_a ? 2 : 1] == 2,
                    .remarks = remarks_of(*this)};
  if (b.size(transposed_b ? -1 : -2) != sizes.k || y.size(-2) != sizes.m || y.size(-1) != sizes.n) refuse();
  for (int back = 2; back < std::max({ranks[0], ranks[1], ranks[2]}); ++back) {
    const std::int64_t count = common_extent(back, a.shape(), b.shape(), y.shape());
    if (count < 0 || (extent(y.shape(), back) != 1 && common_extent(back, a.shape(), b.shape()) != count))
      refuse();
    (extent(y.shape(), back) == count ? sizes.each : sizes.summed)
        .add(count, {step(a.shape(), back), step(b.shape(), back), step(y.shape(), back)});
  }
  // This depends on ranks, not extents: the bits of an example must not depend on the number of examples.
  const auto all_rows = [](StridedDimensions<3>& dimensions) {
    return std::exchange(dimensions, {}).count();
  };
  if (!transposed_a && ranks[1] == 2 && ranks[0] == ranks[2] && sizes.summed.rank == 0)
    sizes.m *= all_rows(sizes.each);
  else if (transposed_a && ranks[2] == 2 &&
           std::ranges::equal(a.shape().extents().first(ranks[0] - 2),
                              b.shape().extents().first(ranks[1] - 2)))
    sizes.k *= all_rows(sizes.summed);
  check_epilogue(*this, sizes);
  return sizes;
}

Shape shape_of_product(const char* function, const Shape& a, const Shape& b) {
  const auto refuse = [&] {
    throw UsageError("{}: shapes {} and {} do not fit: [..., m, k] and [..., k, n] are needed", function,
                     to_string(a), to_string(b));
  };
  if (a.rank() < 2 || b.rank() < 2 || a[-1] != b[-2]) refuse();
  Shape product;
  for (int back = std::max(a.rank(), b.rank()) - 1; back >= 2; --back) {
    const std::int64_t common = common_extent(back, a, b);
    if (common < 0) refuse();
    product.append(common);
  }
  product.append(a[-2]);
  product.append(b[-1]);
  return product;
}

}  // namespace lockstep::ops
