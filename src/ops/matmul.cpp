#include "ops/matmul.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/ops/check.h"

namespace lockstep::ops {
namespace {

/// Checks inner: [..., in], outer: [..., out] of as many rows, weight: [out, in].
LinearSizes linear_sizes(const char* operation, const char* inner_name, const Tensor& inner,
                         const char* outer_name, const Tensor& outer, const Tensor& weight) {
  if (weight.shape().rank() != 2)
    throw UsageError("{}: the weight has shape {}, not [out, in]", operation, to_string(weight.shape()));
  const std::int64_t out = weight.size(0), in = weight.size(1);
  const auto rows_of = [operation](const char* name, const Tensor& tensor, std::int64_t width) {
    if (tensor.shape().rank() < 1 || tensor.size(-1) != width)
      throw UsageError("{}: {} has shape {}, whose last dimension is not the weight's {}", operation, name,
                       to_string(tensor.shape()), width);
    return row_count(tensor.shape());
  };
  const std::int64_t rows = rows_of(inner_name, inner, in), outer_rows = rows_of(outer_name, outer, out);
  if (rows != outer_rows)
    throw UsageError("{}: {} {} and {} {} differ in their rows", operation, inner_name,
                     to_string(inner.shape()), outer_name, to_string(outer.shape()));
  return {rows, in, out};
}

void check_bias(const char* operation, const char* name, const Tensor& bias, const LinearSizes& sizes) {
  if (bias) require_shape(operation, name, bias, {sizes.out});
}

}  // namespace

double LinearSizes::flops() const {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
}
std::string LinearSizes::text() const { return fmt::format("{} x {} -> {}", rows, in, out); }

LinearSizes Linear::sizes() const {
  const LinearSizes sizes = linear_sizes(name, "x", x, "y", y, weight);
  check_bias(name, "the bias", bias, sizes);
  return sizes;
}

LinearSizes LinearBackwardInput::sizes() const { return linear_sizes(name, "dx", dx, "dy", dy, weight); }

LinearSizes LinearBackwardWeight::sizes() const {
  const LinearSizes sizes = linear_sizes(name, "x", x, "dy", dy, dweight);
  check_bias(name, "dbias", dbias, sizes);
  return sizes;
}

LinearSizes LinearActivation::sizes() const {
  const LinearSizes sizes = linear_sizes(name, "x", x, "y", y, weight);
  check_bias(name, "the bias", bias, sizes);
  if (before) require_shape(name, "before", before, y.shape());
  return sizes;
}

LinearSizes LinearBackwardInputActivation::sizes() const {
  require_shape(name, "before", before, dx.shape());
  return linear_sizes(name, "dx", dx, "dy", dy, weight);
}

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

}  // namespace

double MatMulSizes::flops() const {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) *
         static_cast<double>(each.count() * summed.count());
}

std::string MatMulSizes::text() const {
  const std::int64_t products = each.count() * summed.count();
  return fmt::format("{}{} x {} -> {}", products == 1 ? "" : fmt::format("{} x ", products), m, k, n);
}

MatMulSizes MatMul::sizes() const {
  const auto refuse = [&] {
    throw UsageError("{}: a of shape {} and b of shape {}{} do not make y of shape {}", name,
                     to_string(a.shape()), to_string(b.shape()),
                     transposed == Transposed::a   ? ", a transposed,"
                     : transposed == Transposed::b ? ", b transposed,"
                                                   : "",
                     to_string(y.shape()));
  };
  if (accumulate && y.dtype() != DType::float32)
    throw UsageError("{}: y is {}; only float32 is added to", name, to_string(y.dtype()));
  if (y.dtype() != a.dtype() && y.dtype() != DType::float32)
    throw UsageError("{}: y is {}, but a is {}", name, to_string(y.dtype()), to_string(a.dtype()));
  const int ranks[] = {a.shape().rank(), b.shape().rank(), y.shape().rank()};
  if (std::min({ranks[0], ranks[1], ranks[2]}) < 2) refuse();
  const bool transposed_a = transposed == Transposed::a, transposed_b = transposed == Transposed::b;
  MatMulSizes sizes{.m = a.size(transposed_a ? -1 : -2),
                    .n = b.size(transposed_b ? -2 : -1),
                    .k = a.size(transposed_a ? -2 : -1)};
  if (b.size(transposed_b ? -1 : -2) != sizes.k || y.size(-2) != sizes.m || y.size(-1) != sizes.n) refuse();
  for (int back = 2; back < std::max({ranks[0], ranks[1], ranks[2]}); ++back) {
    const std::int64_t count = common_extent(back, a.shape(), b.shape(), y.shape());
    if (count < 0 || (extent(y.shape(), back) != 1 && common_extent(back, a.shape(), b.shape()) != count))
      refuse();
    (extent(y.shape(), back) == count ? sizes.each : sizes.summed)
        .add(count, {step(a.shape(), back), step(b.shape(), back), step(y.shape(), back)});
  }
  // By ranks, not extents: the bits of an example must not depend on how many examples there are.
  const auto all_rows = [](StridedDimensions<3>& dimensions) {
    return std::exchange(dimensions, {}).count();
  };
  if (!transposed_a && ranks[1] == 2 && ranks[0] == ranks[2] && sizes.summed.rank == 0)
    sizes.m *= all_rows(sizes.each);
  else if (transposed_a && ranks[2] == 2 &&
           std::ranges::equal(a.shape().extents().first(ranks[0] - 2),
                              b.shape().extents().first(ranks[1] - 2)))
    sizes.k *= all_rows(sizes.summed);
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
