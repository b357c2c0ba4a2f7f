// Reductions along axes.
#include "lockstep/ops/reduction.h"

#include "autograd/functions/support.h"

namespace lockstep {
namespace {

/// What a reduction makes of a shape.
struct Reduced {
  Shape kept, shape;       ///< with the axes, of extent 1, and as asked for
  std::int64_t count = 1;  ///< elements that become one
};

Reduced reduced(const char* function, const Shape& shape, const Axes& axes, bool keep) {
  std::array<bool, Shape::max_rank> goes{};
  if (axes.begin() == axes.end()) goes.fill(true);
  for (const int given : axes) {
    const auto axis = static_cast<std::size_t>(axis_of(function, shape, given));
    if (goes[axis]) throw UsageError("{}: axis {} is named twice", function, given);
    goes[axis] = true;
  }
  std::array<std::int64_t, Shape::max_rank> kept{}, left{};
  std::size_t rank = 0, left_rank = 0;
  Reduced result;
  for (const std::int64_t extent : shape) {
    kept[rank] = goes[rank] ? 1 : extent;
    if (goes[rank])
      result.count *= extent;
    else
      left[left_rank++] = extent;
    ++rank;
  }
  result.kept = Shape(std::span<const std::int64_t>(kept.data(), rank));
  result.shape = keep ? result.kept : Shape(std::span<const std::int64_t>(left.data(), left_rank));
  return result;
}

/// The same where a fold of nothing has no value.
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
  return x.tape().record(
      y.reshape(to.shape), {&x}, [x = x.without_value(), kept = to.kept, factor](Tape& t, const Tensor& dy) {
        give_new(t, x, [&](const Tensor& dx) {
          t.backend().run(ops::Map<ops::Scaled>{{static_cast<float>(factor)}, {dy.reshape(kept)}, dx});
        });
      });
}

template <class Fold>
Var extreme(const Var& x, const Reduced& to) {
  const Tensor y = folded<Fold>(x.tape().backend(), x.value(), to.kept, x.value().dtype());
  return x.tape().record(y.reshape(to.shape), {&x}, [x, y](Tape& t, const Tensor& dy) {
    give_new(t, x, [&](const Tensor& dx) {
      const Tensor count = folded<ops::CountOfEqual>(t.backend(), x.value(), y.shape(), DType::float32, 1, y);
      t.backend().run(ops::Map<ops::ExtremeSlope>{{}, {x.value(), y, dy.reshape(y.shape()), count}, dx});
    });
  });
}

/// Of what softmax divides by: the largest elements, and the sums of exponentials about them.
struct Exponentials {
  Tensor most, sum;

  Exponentials(kernels::Backend& backend, const Tensor& x, const Shape& kept)
      : most(folded<ops::Largest>(backend, x, kept)),
        sum(folded<ops::SumOfExponentials>(backend, x, kept, DType::float32, 1, most)) {}
};

/// Value(x, most, sum) along an axis; its gradient is Slope(y, dy, along), with along(y, dy) of the kept
/// shape.
template <class Value, class Slope, class Along>
Var along_axis(const Var& given, int axis, const Along& along) {
  const Shape kept = reduced(Value::name, given.shape(), axis, true).kept;
  const Var x = plain(given);
  Tape& tape = x.tape();
  const Tensor y = empty_like(tape.backend(), x.value());
  if (y.numel() > 0) {
    const Exponentials of(tape.backend(), x.value(), kept);
    tape.backend().run(ops::Map<Value>{{}, {x.value(), of.most, of.sum}, y});
  }
  return tape.record(y, {&x}, [x = x.without_value(), y, kept, along](Tape& t, const Tensor& dy) {
    give_new(t, x, [&](const Tensor& dx) {
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

Var variance(const Var& given, const Axes& axes, bool keep) {
  const Reduced to = reduced("variance", given.shape(), axes, keep);
  const Var x = plain(given);
  kernels::Backend& backend = x.tape().backend();
  const double part = 1 / static_cast<double>(to.count);
  const Tensor mean = folded<ops::Total>(backend, x.value(), to.kept, DType::float32, part);
  const Tensor y = folded<ops::SumOfSquares>(backend, x.value(), to.kept, x.value().dtype(), part, mean);
  return x.tape().record(
      y.reshape(to.shape), {&x}, [x, mean, factor = static_cast<float>(2 * part)](Tape& t, const Tensor& dy) {
        give_new(t, x, [&](const Tensor& dx) {
          t.backend().run(
              ops::Map<ops::VarianceSlope>{{factor}, {x.value(), mean, dy.reshape(mean.shape())}, dx});
        });
      });
}

Var amax(const Var& x, const Axes& axes, bool keep) {
  return extreme<ops::Largest>(plain(x), reduced_to_something("amax", x.shape(), axes, keep));
}

Var amin(const Var& x, const Axes& axes, bool keep) {
  return extreme<ops::Smallest>(plain(x), reduced_to_something("amin", x.shape(), axes, keep));
}

Var logsumexp(const Var& given, const Axes& axes, bool keep) {
  const Reduced to = reduced_to_something("logsumexp", given.shape(), axes, keep);
  const Var x = plain(given);
  kernels::Backend& backend = x.tape().backend();
  const Exponentials of(backend, x.value(), to.kept);
  const Tensor y = backend.empty(to.kept, x.value().dtype());
  backend.run(ops::Map<ops::LogSumExp>{{}, {of.most, of.sum}, y});
  return x.tape().record(y.reshape(to.shape), {&x}, [x, of](Tape& t, const Tensor& dy) {
    give_new(t, x, [&](const Tensor& dx) {
      t.backend().run(
          ops::Map<ops::LogSumExpSlope>{{}, {x.value(), of.most, of.sum, dy.reshape(of.sum.shape())}, dx});
    });
  });
}

Var softmax(const Var& x, int axis) {
  return along_axis<ops::Softmax, ops::SoftmaxSlope>(
      x, axis, [](kernels::Backend& backend, const Tensor& y, const Tensor& dy, const Shape& kept) {
        return folded<ops::SumOfProducts>(backend, y, kept, DType::float32, 1, dy);
      });
}

Var log_softmax(const Var& x, int axis) {
  return along_axis<ops::LogSoftmax, ops::LogSoftmaxSlope>(
      x, axis, [](kernels::Backend& backend, const Tensor&, const Tensor& dy, const Shape& kept) {
        return folded<ops::Total>(backend, dy, kept);
      });
}

Var cumsum(const Var& given, int given_axis) {
  const int axis = axis_of("cumsum", given.shape(), given_axis);
  const Var x = plain(given);
  const Tensor y = empty_like(x.tape().backend(), x.value());
  x.tape().backend().run(ops::CumulativeSum{x.value(), axis, false, y});
  return x.tape().record(y, {&x}, [x = x.without_value(), axis](Tape& t, const Tensor& dy) {
    give_new(t, x, [&](const Tensor& dx) { t.backend().run(ops::CumulativeSum{dy, axis, true, dx}); });
  });
}

}  // namespace lockstep
