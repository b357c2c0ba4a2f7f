// Layouts and shapes.
#include <array>

#include "autograd/functions/support.h"

namespace lockstep {

Var to_channel_block(const Var& x, int channel_block) {
  if (x.value().channel_block() == channel_block) return x;
  Tape& tape = x.tape();
  const Tensor y = tape.backend().empty(x.shape(), x.value().dtype(), channel_block);
  tape.backend().run(ops::ToLayout{x.value(), y});
  return tape.record(y, {&x}, [x = x.without_value()](Tape& t, const Tensor& dy) {
    give_new(t, x, [&](const Tensor& dx) { t.backend().run(ops::ToLayout{dy, dx}); });
  });
}

Var reshape(const Var& given, Shape shape) {
  if (given.shape() == shape) return given;
  const Var x = plain(given);
  return x.tape().record(x.value().reshape(shape), {&x}, [x = x.without_value()](Tape& t, const Tensor& dy) {
    t.give(x, dy.reshape(x.shape()));
  });
}

Var flatten(const Var& x, int first) {
  const Shape& shape = x.shape();
  if (first < 0 || first >= shape.rank())
    throw UsageError("flatten: shape {} has no dimension {}", to_string(shape), first);
  std::array<std::int64_t, Shape::max_rank> extents{};
  std::int64_t rest = 1;
  for (int d = 0; d < shape.rank(); ++d) {
    if (d < first)
      extents[static_cast<std::size_t>(d)] = shape[d];
    else
      rest *= shape[d];
  }
  extents[static_cast<std::size_t>(first)] = rest;
  return reshape(plain(x),
                 Shape(std::span<const std::int64_t>(extents.data(), static_cast<std::size_t>(first) + 1)));
}

}  // namespace lockstep
