// Functions of two inputs, which are broadcast; linear functions; dropout.
#include <algorithm>

#include "autograd/functions/support.h"
#include "lockstep/ops/random.h"

namespace lockstep {
namespace {

/// The shape that both broadcast to by NumPy's rules.
Shape broadcast_shape(const char* function, const Shape& a, const Shape& b) {
  Shape common;
  for (int d = std::max(a.rank(), b.rank()); d > 0; --d) {  // counted from the last
    const std::int64_t of_a = d > a.rank() ? 1 : a[-d], of_b = d > b.rank() ? 1 : b[-d];
    if (of_a != of_b && of_a != 1 && of_b != 1)
      throw UsageError("{}: the shapes {} and {} do not broadcast", function, to_string(a), to_string(b));
    common.append(of_a == 1 ? of_b : of_a);
  }
  return common;
}

/// The tensors that gradients are computed from.
struct Saved {
  Tensor dy, a, b, y;
};

/// The gradient of a sum: dy itself.
constexpr auto pass_on = [](const Saved& at) -> const Tensor& { return at.dy; };
constexpr auto negate = [](const Saved& at) { return ops::Map<ops::Scaled>{{-1.0f}, {at.dy}, {}}; };

/// Adds gradient(saved) to an input's gradient: a Map without its result, or a Tensor.
template <class GradientOf>
void add_gradient_of(Tape& tape, const Var& input, const Saved& saved, const GradientOf& gradient) {
  if (!input.needs_gradient()) return;
  if constexpr (std::is_convertible_v<decltype(gradient(saved)), const Tensor&>) {
    add_broadcast_gradient(tape, input, gradient(saved));
  } else {
    auto map = gradient(saved);
    map.y = empty_like(tape.backend(), saved.dy);
    tape.backend().run(map);
    add_broadcast_gradient(tape, input, map.y);
  }
}

/// Which tensors the gradients of a pair read.
struct Reads {
  bool a = false, b = false, y = false;
};

/// map(a, b) (a Map without its result), of shape `shape`, and its gradients.
template <class MapOf, class GradientOfA, class GradientOfB>
Var record_pair(const Var& a, const Var& b, const Shape& shape, const MapOf& map_of, Reads reads,
                const GradientOfA& gradient_a, const GradientOfB& gradient_b) {
  Tape& tape = a.tape();
  const bool half = a.value().dtype() == DType::bfloat16 || b.value().dtype() == DType::bfloat16;
  auto map = map_of(a.value(), b.value());
  map.y = tape.backend().empty(shape, half ? DType::bfloat16 : DType::float32,
                               a.shape() == shape ? a.value().channel_block() : 1);
  tape.backend().run(map);
  return tape.record(map.y, {&a, &b},
                     [a = a.without_value(), b = b.without_value(), at_a = reads.a ? a.value() : Tensor(),
                      at_b = reads.b ? b.value() : Tensor(), y = reads.y ? map.y : Tensor(), gradient_a,
                      gradient_b](Tape& t, const Tensor& dy) {
                       const Saved saved{dy, at_a, at_b, y};
                       add_gradient_of(t, a, saved, gradient_a);
                       add_gradient_of(t, b, saved, gradient_b);
                     });
}

/// A formula of two inputs, both in one layout or plain.
template <class Formula, class GradientOfA, class GradientOfB>
Var pair(const Var& a_input, const Var& b_input, Reads reads, const GradientOfA& gradient_a,
         const GradientOfB& gradient_b) {
  const bool alike = a_input.shape() == b_input.shape();
  const Var a = alike ? a_input : plain(a_input),
            b = to_channel_block(b_input, alike ? a.value().channel_block() : 1);
  const auto map = [](const Tensor& x, const Tensor& y) { return ops::Map<Formula>{{}, {x, y}, {}}; };
  return record_pair(a, b, broadcast_shape(Formula::name, a.shape(), b.shape()), map, reads, gradient_a,
                     gradient_b);
}

template <class Formula>
Var extreme(const Var& a, const Var& b, bool largest) {
  const auto first = [](const Saved& at) { return ops::Map<ops::LargerSlope>{{}, {at.dy, at.a, at.b}, {}}; };
  const auto second = [](const Saved& at) { return ops::Map<ops::LargerSlope>{{}, {at.dy, at.b, at.a}, {}}; };
  return largest ? pair<Formula>(a, b, {.a = true, .b = true}, first, second)
                 : pair<Formula>(a, b, {.a = true, .b = true}, second, first);
}

/// A formula of x whose derivative is `factor` everywhere.
template <class Formula>
Var linear_function(const Var& x, const Formula& formula, float factor) {
  Tape& tape = x.tape();
  const Tensor y = empty_like(tape.backend(), x.value());
  tape.backend().run(ops::Map<Formula>{formula, {x.value()}, y});
  return tape.record(y, {&x}, [x = x.without_value(), factor](Tape& t, const Tensor& dy) {
    if (factor == 1) return t.add_gradient(x, dy);
    add_new_gradient(t, x, [&](const Tensor& dx) { t.backend().run(ops::scale(dy, factor, dx)); });
  });
}

}  // namespace

Var add(const Var& a, const Var& b_input) {
  if (!(a.shape() == b_input.shape()) || a.value().dtype() != b_input.value().dtype())
    return pair<ops::Sum>(a, b_input, {}, pass_on, pass_on);
  const Var b = to_channel_block(b_input, a.value().channel_block());
  Tape& tape = a.tape();
  const Tensor y = empty_like(tape.backend(), a.value());
  tape.backend().run(ops::add(a.value(), b.value(), y));
  return record_sum(y, a, b);
}

Var sub(const Var& a, const Var& b) { return pair<ops::Difference>(a, b, {}, pass_on, negate); }

Var mul(const Var& a, const Var& b) {
  return pair<ops::Product>(
      a, b, {.a = b.needs_gradient(), .b = a.needs_gradient()},
      [](const Saved& at) {
        return ops::Map<ops::Product>{{}, {at.dy, at.b}, {}};
      },
      [](const Saved& at) {
        return ops::Map<ops::Product>{{}, {at.dy, at.a}, {}};
      });
}

Var swiglu(const Var& gate, const Var& up) {
  return pair<ops::SwiGlu>(
      gate, up, {.a = true, .b = true},
      [](const Saved& at) {
        return ops::Map<ops::SwiGluSlope>{{}, {at.dy, at.a, at.b}, {}};
      },
      [](const Saved& at) {
        return ops::Map<ops::SwiGlu>{{}, {at.a, at.dy}, {}};
      });
}

Var div(const Var& a, const Var& b) {
  return pair<ops::Quotient>(
      a, b, {.b = true, .y = b.needs_gradient()},
      [](const Saved& at) {
        return ops::Map<ops::Quotient>{{}, {at.dy, at.b}, {}};
      },
      [](const Saved& at) {
        return ops::Map<ops::DivisorSlope>{{}, {at.dy, at.y, at.b}, {}};
      });
}

Var maximum(const Var& a, const Var& b) { return extreme<ops::Maximum>(a, b, true); }
Var minimum(const Var& a, const Var& b) { return extreme<ops::Minimum>(a, b, false); }

Var where(const Tensor& condition, const Var& a_input, const Var& b_input) {
  if (condition.dtype() != DType::int64 && condition.dtype() != DType::uint8)
    throw UsageError("where: the condition is {}, not int64 or uint8", to_string(condition.dtype()));
  const Var a = plain(a_input), b = plain(b_input);
  const Shape shape =
      broadcast_shape("where", condition.shape(), broadcast_shape("where", a.shape(), b.shape()));
  kernels::Backend& backend = a.tape().backend();
  const Tensor mask = backend.empty(condition.shape()), zero = backend.empty({});
  backend.copy(condition, mask);
  backend.fill(zero, 0);
  return record_pair(
      a, b, shape,
      [&](const Tensor& x, const Tensor& y) {
        return ops::Map<ops::Where>{{}, {mask, x, y}, {}};
      },
      {},
      [mask, zero](const Saved& at) {
        return ops::Map<ops::Where>{{}, {mask, at.dy, zero}, {}};
      },
      [mask, zero](const Saved& at) {
        return ops::Map<ops::Where>{{}, {mask, zero, at.dy}, {}};
      });
}

namespace {

/// A constant scalar of x's type.
Var scalar_like(const Var& x, float value) {
  Tape& tape = x.tape();
  const Tensor one = tape.backend().empty({}, x.value().dtype());
  tape.backend().fill(one, value);
  return tape.constant(one);
}

}  // namespace

Var where(const Tensor& condition, const Var& a, float b) { return where(condition, a, scalar_like(a, b)); }
Var where(const Tensor& condition, float a, const Var& b) { return where(condition, scalar_like(b, a), b); }

Var scale(const Var& x, float factor) { return linear_function(x, ops::Scaled{factor}, factor); }
Var add(const Var& x, float value) { return linear_function(x, ops::Shifted{1, value}, 1); }
Var sub(float value, const Var& x) { return linear_function(x, ops::Shifted{-1, value}, -1); }
Var div(float value, const Var& x) { return elementwise<ops::Reciprocal>(x, {value}); }
Var maximum(const Var& x, float value) {
  if (value != value) throw UsageError("maximum: the value is NaN");
  return clamp(x, value, std::numeric_limits<float>::infinity());
}

Var minimum(const Var& x, float value) {
  if (value != value) throw UsageError("minimum: the value is NaN");
  return clamp(x, -std::numeric_limits<float>::infinity(), value);
}

Var clamp(const Var& x, float low, float high) {
  if (!(low <= high)) throw UsageError("clamp: low = {} is not at most high = {}", low, high);
  return elementwise<ops::Clamp>(x, {low, high});
}

Var dropout(const Var& x, float p, std::uint64_t purpose) {
  if (!(p >= 0 && p < 1)) throw UsageError("dropout: p = {} is not in [0, 1)", p);
  Tape& tape = x.tape();
  if (!tape.pass().training || p == 0) return x;
  const RandomKey key = dropout_key(tape.pass(), purpose);
  const Tensor y = empty_like(tape.backend(), x.value());
  tape.run_by_shard(ops::Dropout{x.value(), p, key, y});
  return tape.record(y, {&x}, [x = x.without_value(), p, key](Tape& t, const Tensor& dy) {
    add_new_gradient(t, x, [&](const Tensor& dx) { t.run_by_shard(ops::Dropout{dy, p, key, dx}); });
  });
}

}  // namespace lockstep
