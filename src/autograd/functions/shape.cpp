// Layouts, shapes and reductions.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "autograd/functions/support.h"
#include "lockstep/ops/check.h"
#include "lockstep/ops/gather.h"
#include "ops/reduction.h"
#include "ops/strided_copy.h"

namespace lockstep {
namespace {

using ops::StridedCopy, ops::StridedView;

/// A copy of a view of x in which no element of x occurs twice.
Var copy_of_view(const Var& x, const StridedView& view) {
  Tape& tape = x.tape();
  const Tensor y = tape.backend().empty(view.shape, x.value().dtype());
  tape.backend().run(StridedCopy{view.of(x.value()), StridedView(y)});
  if (view.shape.numel() == x.shape().numel()) {
    const Var copy = tape.record(y, {&x}, [x = x.without_value(), view](Tape& t, const Tensor& dy) {
      if (!x.needs_gradient()) return;
      const Tensor dx = t.backend().empty(t.shape_of_gradient(x), x.value().dtype());
      const bool by_shard = dx.numel() != x.shape().numel();
      const StridedView each = by_shard ? view.repeated(t.pass().shards, x.shape().numel()) : view;
      t.backend().run(StridedCopy{StridedView(dy), each.of(dx)});
      t.add_gradient(x, dx);
    });
    tape.inherit_sharing(copy, x);
    return copy;
  }
  return tape.record(y, {&x}, [x = x.without_value(), view](Tape& t, const Tensor& dy) {
    add_to_part(t, x, [&](const Tensor& dx) {
      t.backend().run(StridedCopy{StridedView(dy), view.of(dx), true});
    });
  });
}

/// Copies x into a view of y and records it; `rest` is the Var that y's other elements come from.
Var copy_to_view(const Var& x, const StridedView& view, const Tensor& y, const Var& rest) {
  Tape& tape = x.tape();
  tape.backend().run(StridedCopy{StridedView(x.value().reshape(view.shape)), view.of(y)});
  return tape.record(y, {&rest, &x},
                     [x = x.without_value(), rest = rest.without_value(), view](Tape& t, const Tensor& dy) {
                       add_new_gradient(t, x, [&](const Tensor& dx) {
                         t.backend().run(StridedCopy{view.of(dy), StridedView(dx.reshape(view.shape))});
                       });
                       t.add_gradient(rest, dy);
                     });
}

/// Joins the parts along an axis of the result. stored(part) is the part as plain rows, extent(part) its
/// extent along the axis.
template <class Extent, class Stored>
Var join(std::span<const Var> parts, const Shape& shape, int axis, const Extent& extent,
         const Stored& stored) {
  Tape& tape = parts.front().tape();
  const Tensor y = tape.backend().empty(shape, parts.front().value().dtype());
  Var joined = tape.constant(y);
  std::int64_t start = 0;
  for (const Var& part : parts) {
    const std::int64_t length = extent(part);
    joined = copy_to_view(stored(part), StridedView(shape).narrowed(axis, start, length), y, joined);
    start += length;
  }
  return joined;
}

/// x at the indices along an axis; `shape`: the shape of the result.
Var gathered(const Var& x, int axis, const Tensor& indices, const Shape& shape) {
  Tape& tape = x.tape();
  const Tensor y = tape.backend().empty(shape, x.value().dtype());
  tape.backend().run(ops::Gather{x.value(), indices, axis, y});
  return record_unary(y, x, [axis, indices](const Tensor& dy, const Tensor& dx) {
    return ops::GatherBackward{dy, indices, axis, dx};
  });
}

/// The blocks of images in full channel blocks as an axis: [N, C / block, H W, block].
Shape blocks_of(const Shape& images, int block) {
  return {images[0], images[1] / block, positions_of(images), block};
}

/// The common channel block of images; 1 if there is none, or if a block is not full.
int common_full_block(std::span<const Var> images) {
  const int block = images.front().value().channel_block();
  const bool common = std::ranges::all_of(images, [block](const Var& x) {
    return x.value().channel_block() == block && x.shape()[1] % block == 0;
  });
  return common ? block : 1;
}

/// Whether all images, and the joined one, have the channels of a position side by side.
bool channels_last(std::span<const Var> images, std::int64_t channels) {
  const Var& first = images.front();
  return first.tape().backend().preferred_channel_block(channels, first.value().dtype()) == channels &&
         std::ranges::all_of(images, [](const Var& x) { return x.value().channel_block() == x.shape()[1]; });
}

void require_part_like(const char* function, std::span<const Var> parts, std::size_t i, bool fits) {
  const Tensor &first = parts.front().value(), &part = parts[i].value();
  if (!fits)
    throw UsageError("{}: part {} of shape {} does not fit the first, of shape {}", function, i,
                     to_string(part.shape()), to_string(first.shape()));
  if (part.dtype() != first.dtype())
    throw UsageError("{}: part {} is {}, but the first is {}", function, i, to_string(part.dtype()),
                     to_string(first.dtype()));
}

}  // namespace

Var to_channel_block(const Var& x, int channel_block) {
  if (x.value().channel_block() == channel_block) return x;
  Tape& tape = x.tape();
  const Tensor y = tape.backend().empty(x.shape(), x.value().dtype(), channel_block);
  tape.backend().run(ops::ToLayout{x.value(), y});
  return record_unary(y, x, [](const Tensor& dy, const Tensor& dx) { return ops::ToLayout{dy, dx}; });
}

Var stored_as(const Var& x, const Shape& shape, int channel_block) {
  return x.tape().record(x.value().stored_as(shape, channel_block), {&x},
                         [x = x.without_value()](Tape& t, const Tensor& dy) {
                           t.add_gradient(x, dy.stored_as(x.shape(), x.value().channel_block()));
                         });
}

Var reshape(const Var& input, Shape shape) {
  if (input.shape() == shape) return input;
  const Var x = plain(input);
  Tape& tape = x.tape();
  const Var y =
      tape.record(x.value().reshape(shape), {&x}, [x = x.without_value()](Tape& t, const Tensor& dy) {
        t.add_gradient(x, dy.reshape(t.shape_of_gradient(x)));
      });
  tape.inherit_sharing(y, x);
  return y;
}

Var flatten(const Var& x, int first) {
  const Shape& shape = x.shape();
  if (first < 0 || first >= shape.rank())
    throw UsageError("flatten: shape {} has no dimension {}", to_string(shape), first);
  Shape flat;
  for (int d = 0; d <= first; ++d) flat.append(shape[d]);
  for (int d = first + 1; d < shape.rank(); ++d) flat = flat.with(-1, flat[-1] * shape[d]);
  return reshape(plain(x), flat);
}

Var to_sequence(const Var& x) {
  if (x.shape().rank() != 5) require_rank("to_sequence", x, 4);
  const Shape& s = x.shape();
  return stored_as(to_channel_block(x, std::max(1, static_cast<int>(s[1]))), {s[0], positions_of(s), s[1]});
}

Var from_sequence(const Var& input, std::span<const std::int64_t> size) {
  require_rank("from_sequence", input, 3);
  const Shape& s = input.shape();
  Shape shape{s[0], s[2]};
  for (const std::int64_t extent : size) shape.append(extent);
  if ((size.size() != 2 && size.size() != 3) || std::ranges::min(size) < 0 || positions_of(shape) != s[1])
    throw UsageError("from_sequence: {} positions are not {}", s[1], fmt::join(size, " x "));
  return stored_as(input, shape, std::max(1, static_cast<int>(s[2])));
}

Var concat(std::span<const Var> parts, int signed_axis) {
  if (parts.empty()) throw UsageError("concat: there is nothing to join");
  const Shape& first = parts.front().shape();
  const int axis = axis_of("concat", first, signed_axis);
  std::int64_t total = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Shape& shape = parts[i].shape();
    const bool fits = shape.rank() == first.rank() && shape.with(axis, 0) == first.with(axis, 0);
    require_part_like("concat", parts, i, fits);
    total += shape[axis];
  }
  const Shape joined = first.with(axis, total);
  const bool of_channels = axis == 1 && (first.rank() == 4 || first.rank() == 5);
  if (of_channels && channels_last(parts, total)) {
    const auto rows = [](const Shape& s) { return Shape{s[0], positions_of(s), s[1]}; };
    const auto in_rows = [&](const Var& part) { return stored_as(part, rows(part.shape())); };
    const auto channels = [](const Var& part) { return part.shape()[1]; };
    return stored_as(join(parts, rows(joined), 2, channels, in_rows), joined, static_cast<int>(total));
  }
  const int block = of_channels ? common_full_block(parts) : 1;
  const auto extent = [axis, block](const Var& part) { return part.shape()[axis] / block; };
  if (block == 1) return join(parts, joined, axis, extent, plain);
  const auto in_blocks = [block](const Var& part) { return stored_as(part, blocks_of(part.shape(), block)); };
  return stored_as(join(parts, blocks_of(joined, block), axis, extent, in_blocks), joined, block);
}

Var stack(std::span<const Var> parts, int signed_axis) {
  if (parts.empty()) throw UsageError("stack: there is nothing to join");
  const Shape& first = parts.front().shape();
  for (std::size_t i = 0; i < parts.size(); ++i)
    require_part_like("stack", parts, i, parts[i].shape() == first);
  const int rank = first.rank();
  if (rank == Shape::max_rank || signed_axis < -rank - 1 || signed_axis > rank)
    throw UsageError("stack: shape {} cannot get a new axis {}", to_string(first), signed_axis);
  const int axis = signed_axis < 0 ? signed_axis + rank + 1 : signed_axis;
  Shape shape;
  for (int d = 0; d <= rank; ++d)
    shape.append(d == axis ? static_cast<std::int64_t>(parts.size()) : first[d < axis ? d : d - 1]);
  return join(
      parts, shape, axis, [](const Var&) { return std::int64_t{1}; }, plain);
}

Var narrow(const Var& x, int signed_axis, std::int64_t start, std::int64_t length) {
  const int axis = axis_of("narrow", x.shape(), signed_axis);
  const std::int64_t extent = x.shape()[axis];
  if (start < 0 || length < 0 || start > extent || length > extent - start) {
    const auto end =
        static_cast<std::uint64_t>(start) + static_cast<std::uint64_t>(length);  // never overflows
    throw UsageError("narrow: axis {} of shape {} does not contain [{}, {})", signed_axis,
                     to_string(x.shape()), start, static_cast<std::int64_t>(end));
  }
  return copy_of_view(plain(x), StridedView(x.shape()).narrowed(axis, start, length));
}

void chunk(const Var& x, int axis, std::span<Var> parts) {
  const std::int64_t extent = x.shape()[axis_of("chunk", x.shape(), axis)],
                     count = static_cast<std::int64_t>(parts.size());
  if (count == 0 || extent % count != 0)
    throw UsageError("chunk: {} parts do not divide axis {} of shape {}", count, axis, to_string(x.shape()));
  const Var whole = plain(x);
  for (std::int64_t i = 0; i < count; ++i)
    parts[static_cast<std::size_t>(i)] = narrow(whole, axis, i * (extent / count), extent / count);
}

Var permute(const Var& x, std::span<const int> axes) {
  std::array<int, Shape::max_rank> order{};
  std::array<bool, Shape::max_rank> seen{};
  bool fits = static_cast<int>(axes.size()) == x.shape().rank();
  for (std::size_t d = 0; fits && d < axes.size(); ++d) {
    order[d] = axis_of("permute", x.shape(), axes[d]);
    fits = !std::exchange(seen[static_cast<std::size_t>(order[d])], true);
  }
  if (!fits)
    throw UsageError("permute: the order of shape {} must name each of its axes once", to_string(x.shape()));
  return copy_of_view(plain(x),
                      StridedView(x.shape()).permuted(std::span<const int>(order.data(), axes.size())));
}

Var transpose(const Var& x, int a, int b) {
  std::array<int, Shape::max_rank> order{0, 1, 2, 3, 4, 5};
  std::swap(order[static_cast<std::size_t>(axis_of("transpose", x.shape(), a))],
            order[static_cast<std::size_t>(axis_of("transpose", x.shape(), b))]);
  return permute(x, std::span<const int>(order.data(), static_cast<std::size_t>(x.shape().rank())));
}

Var expand(const Var& input, const Shape& shape) {
  const Var x = plain(input);
  if (!ops::broadcasts_to(x.shape(), shape))
    throw UsageError("expand: {} does not broadcast to {}", to_string(x.shape()), to_string(shape));
  Tape& tape = x.tape();
  const Tensor y = tape.backend().empty(shape, x.value().dtype());
  tape.backend().run(StridedCopy{StridedView(x.value()).expanded(shape), StridedView(y)});
  return tape.record(y, {&x}, [x = x.without_value()](Tape& t, const Tensor& dy) {
    add_broadcast_gradient(t, x, dy, true);
  });
}

Var flip(const Var& x, const Axes& axes) {
  StridedView view(x.shape());
  if (axes.begin() == axes.end()) {
    for (int d = 0; d < x.shape().rank(); ++d) view = view.flipped(d);
  }
  unsigned flipped = 0;  // one bit for each axis
  for (const int number : axes) {
    const int axis = axis_of("flip", x.shape(), number);
    if ((flipped >> axis & 1u) != 0) throw UsageError("flip: axis {} is named twice", axis);
    flipped |= 1u << axis;
    view = view.flipped(axis);
  }
  return copy_of_view(plain(x), view);
}

Var pad(const Var& input, std::span<const Pad> pads, float value) {
  constexpr std::int64_t largest_pad = std::int64_t{1} << 59;  // the limit of a shape; sums do not overflow
  const Var x = plain(input);
  if (static_cast<int>(pads.size()) > x.shape().rank())
    throw UsageError("pad: shape {} has fewer than {} axes", to_string(x.shape()), pads.size());
  Shape shape = x.shape();
  for (std::size_t d = 0; d < pads.size(); ++d) {
    const int axis = static_cast<int>(d);
    if (std::min(pads[d].before, pads[d].after) < 0 || std::max(pads[d].before, pads[d].after) > largest_pad)
      throw UsageError("pad: {} before and {} after axis {} of shape {} are out of range", pads[d].before,
                       pads[d].after, axis, to_string(x.shape()));
    shape = shape.with(axis, pads[d].before + x.shape()[axis] + pads[d].after);
  }
  Tape& tape = x.tape();
  const Tensor y = tape.backend().empty(shape, x.value().dtype());
  tape.backend().fill(y, static_cast<double>(value));
  StridedView inner(shape);
  for (std::size_t d = 0; d < pads.size(); ++d)
    inner = inner.narrowed(static_cast<int>(d), pads[d].before, x.shape()[static_cast<int>(d)]);
  return copy_to_view(x, inner, y, tape.constant(y));
}

Var index_select(const Var& x, int signed_axis, const Tensor& indices) {
  const int axis = axis_of("index_select", x.shape(), signed_axis);
  if (indices.shape().rank() != 1)
    throw UsageError("index_select: indices have shape {}, not [n]", to_string(indices.shape()));
  return gathered(plain(x), axis, indices, x.shape().with(axis, indices.numel()));
}

Var gather(const Var& x, int signed_axis, const Tensor& indices) {
  const int axis = axis_of("gather", x.shape(), signed_axis);
  if (indices.shape().rank() != x.shape().rank() ||
      !(x.shape().with(axis, indices.size(axis)) == indices.shape()))
    throw UsageError("gather: indices of shape {} do not fit {} along axis {}", to_string(indices.shape()),
                     to_string(x.shape()), signed_axis);
  return gathered(plain(x), axis, indices, indices.shape());
}

namespace {

/// The result of a reduction.
struct Reduced {
  Shape kept, shape;       ///< with extent 1 along the axes; of the result
  std::int64_t count = 1;  ///< elements that are reduced to one
};

Reduced reduced(const char* function, const Shape& shape, const Axes& axes, bool keep) {
  std::array<bool, Shape::max_rank> reduces{};
  if (axes.begin() == axes.end()) reduces.fill(true);
  for (const int number : axes) {
    const auto axis = static_cast<std::size_t>(axis_of(function, shape, number));
    if (reduces[axis]) throw UsageError("{}: axis {} is named twice", function, number);
    reduces[axis] = true;
  }
  Reduced result;
  for (int d = 0; d < shape.rank(); ++d) {
    const bool reduced = reduces[static_cast<std::size_t>(d)];
    if (reduced) result.count *= shape[d];
    result.kept.append(reduced ? 1 : shape[d]);
    if (!reduced || keep) result.shape.append(result.kept[-1]);
  }
  return result;
}

/// The same for a reduction that has no value over no elements.
Reduced reduced_to_something(const char* function, const Shape& shape, const Axes& axes, bool keep) {
  const Reduced to = reduced(function, shape, axes, keep);
  if (to.count == 0 && to.kept.numel() > 0)
    throw UsageError("{}: shape {} has no elements along these axes", function, to_string(shape));
  return to;
}

template <class Fold>
Tensor folded(kernels::Backend& backend, const Tensor& x, const Shape& to, DType dtype = DType::float32,
              double factor = 1, const Tensor& other = {}) {
  const Tensor y = backend.empty(to, dtype);
  backend.run(ops::ReduceAxes<Fold>{x, y, false, factor, other});
  return y;
}

/// factor * the sum: the gradient of each element is that of its sum, times the factor.
Var scaled_sum(const Var& x, const Reduced& to, double factor) {
  const Tensor y = folded<ops::Total>(x.tape().backend(), x.value(), to.kept, x.value().dtype(), factor);
  return record_unary(y.reshape(to.shape), x,
                      [kept = to.kept, by = static_cast<float>(factor)](const Tensor& dy, const Tensor& dx) {
                        return ops::Map<ops::Scaled>{{by}, {dy.reshape(kept)}, dx};
                      });
}

template <class Fold>
Var extreme(const Var& x, const Reduced& to) {
  const Tensor y = folded<Fold>(x.tape().backend(), x.value(), to.kept, x.value().dtype());
  return x.tape().record(y.reshape(to.shape), {&x}, [x, y](Tape& t, const Tensor& dy) {
    add_new_gradient(t, x, [&](const Tensor& dx) {
      const Tensor count = folded<ops::CountOfEqual>(t.backend(), x.value(), y.shape(), DType::float32, 1, y);
      t.backend().run(ops::Map<ops::ExtremeSlope>{{}, {x.value(), y, dy.reshape(y.shape()), count}, dx});
    });
  });
}

/// The largest elements, and the sums of e^(element - largest): what softmax divides by.
struct Exponentials {
  Tensor max, sum;

  Exponentials(kernels::Backend& backend, const Tensor& x, const Shape& kept)
      : max(folded<ops::Largest>(backend, x, kept)),
        sum(folded<ops::SumOfExponentials>(backend, x, kept, DType::float32, 1, max)) {}
};

/// Value(x, max, sum) along an axis; its gradient is Slope(y, dy, along), with along(y, dy) of the kept
/// shape.
template <class Value, class Slope, class Along>
Var along_axis(const Var& input, int axis, const Along& along) {
  const Shape kept = reduced(Value::name, input.shape(), axis, true).kept;
  const Var x = plain(input);
  Tape& tape = x.tape();
  const Tensor y = empty_like(tape.backend(), x.value());
  if (y.numel() > 0) {
    const Exponentials of(tape.backend(), x.value(), kept);
    tape.backend().run(ops::Map<Value>{{}, {x.value(), of.max, of.sum}, y});
  }
  return tape.record(y, {&x}, [x = x.without_value(), y, kept, along](Tape& t, const Tensor& dy) {
    add_new_gradient(t, x, [&](const Tensor& dx) {
      t.backend().run(ops::Map<Slope>{{}, {y, dy, along(t.backend(), y, dy, kept)}, dx});
    });
  });
}

}  // namespace

void Axes::add(int axis) {
  const auto at = static_cast<std::size_t>(count_);
  if (at == axes_.size()) throw UsageError("more than {} axes", axes_.size());
  axes_[at] = axis;
  ++count_;
}

Var sum(const Var& x, const Axes& axes, bool keep) {
  return scaled_sum(plain(x), reduced("sum", x.shape(), axes, keep), 1);
}

Var mean(const Var& x, const Axes& axes, bool keep) {
  const Reduced to = reduced("mean", x.shape(), axes, keep);
  return scaled_sum(plain(x), to, 1 / static_cast<double>(to.count));
}

Var variance(const Var& input, const Axes& axes, bool keep) {
  const Reduced to = reduced("variance", input.shape(), axes, keep);
  const Var x = plain(input);
  kernels::Backend& backend = x.tape().backend();
  const double share = 1 / static_cast<double>(to.count);
  const Tensor mean = folded<ops::Total>(backend, x.value(), to.kept, DType::float32, share);
  const Tensor y = folded<ops::SumOfSquares>(backend, x.value(), to.kept, x.value().dtype(), share, mean);
  return record_unary(
      y.reshape(to.shape), x,
      [at = x.value(), mean, factor = static_cast<float>(2 * share)](const Tensor& dy, const Tensor& dx) {
        return ops::Map<ops::VarianceSlope>{{factor}, {at, mean, dy.reshape(mean.shape())}, dx};
      });
}

Var amax(const Var& x, const Axes& axes, bool keep) {
  return extreme<ops::Largest>(plain(x), reduced_to_something("amax", x.shape(), axes, keep));
}

Var amin(const Var& x, const Axes& axes, bool keep) {
  return extreme<ops::Smallest>(plain(x), reduced_to_something("amin", x.shape(), axes, keep));
}

Var logsumexp(const Var& input, const Axes& axes, bool keep) {
  const Reduced to = reduced_to_something("logsumexp", input.shape(), axes, keep);
  const Var x = plain(input);
  kernels::Backend& backend = x.tape().backend();
  const Exponentials of(backend, x.value(), to.kept);
  const Tensor y = backend.empty(to.kept, x.value().dtype());
  backend.run(ops::Map<ops::LogSumExp>{{}, {of.max, of.sum}, y});
  return record_unary(y.reshape(to.shape), x, [at = x.value(), of](const Tensor& dy, const Tensor& dx) {
    return ops::Map<ops::LogSumExpSlope>{{}, {at, of.max, of.sum, dy.reshape(of.sum.shape())}, dx};
  });
}

Var softmax(const Var& x, int axis) {
  return along_axis<ops::Softmax, ops::SoftmaxSlope>(
      x, axis, [](kernels::Backend& backend, const Tensor& y, const Tensor& dy, const Shape& kept) {
        return folded<ops::SumOfProducts>(backend, y, kept, DType::float32, 1, dy);
      });
}

Var to_float32(const Var& x) {
  if (x.value().dtype() == DType::float32) return x;
  Tape& tape = x.tape();
  return tape.record(tape.backend().in_type(x.value(), DType::float32), {&x}, [x](Tape& t, const Tensor& dy) {
    t.add_gradient(x, t.backend().in_type(dy, x.value().dtype()));
  });
}

Var log_softmax(const Var& x, int axis) {
  return along_axis<ops::LogSoftmax, ops::LogSoftmaxSlope>(
      x, axis, [](kernels::Backend& backend, const Tensor&, const Tensor& dy, const Shape& kept) {
        return folded<ops::Total>(backend, dy, kept);
      });
}

Var cumsum(const Var& input, int signed_axis) {
  const int axis = axis_of("cumsum", input.shape(), signed_axis);
  const Var x = plain(input);
  const Tensor y = empty_like(x.tape().backend(), x.value());
  x.tape().backend().run(ops::CumulativeSum{x.value(), axis, false, y});
  return record_unary(y, x, [axis](const Tensor& dy, const Tensor& dx) {
    return ops::CumulativeSum{dy, axis, true, dx};
  });
}

}  // namespace lockstep
