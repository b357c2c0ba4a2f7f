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

/// factor * the sum: the gradient of each element is that of its sum, times the factor.
Var scaled_sum(const Var& x, const Reduced& to, double factor) {
  Tape& tape = x.tape();
  const Tensor y = tape.backend().empty(to.kept, x.value().dtype());
  tape.backend().run(ops::ReduceAxes<ops::Total>{x.value(), y, false, factor});
  return tape.record(
      y.reshape(to.shape), {&x}, [x = x.without_value(), kept = to.kept, factor](Tape& t, const Tensor& dy) {
        give_new(t, x, [&](const Tensor& dx) {
          t.backend().run(ops::Map<ops::Scaled>{{static_cast<float>(factor)}, {dy.reshape(kept)}, dx});
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

}  // namespace lockstep
