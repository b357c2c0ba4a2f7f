// Sums, multiples and dropout.
#include "autograd/functions/support.h"

namespace lockstep {
Var add(const Var& a, const Var& b_given) {
  if (!(a.shape() == b_given.shape()))
    throw UsageError("add: the shapes {} and {} differ", to_string(a.shape()), to_string(b_given.shape()));
  const Var b = to_channel_block(b_given, a.value().channel_block());
  Tape& tape = a.tape();
  const Tensor y = empty_like(tape.backend(), a.value());
  tape.backend().run(ops::add(a.value(), b.value(), y));
  return record_sum(y, a, b);
}

Var scale(const Var& x, float factor) {
  Tape& tape = x.tape();
  const Tensor y = empty_like(tape.backend(), x.value());
  tape.backend().run(ops::scale(x.value(), factor, y));
  return tape.record(y, {&x}, [x = x.without_value(), factor](Tape& t, const Tensor& dy) {
    give_new(t, x, [&](const Tensor& dx) { t.backend().run(ops::scale(dy, factor, dx)); });
  });
}

Var clamp(const Var& x, float low, float high) {
  if (!(low <= high)) throw UsageError("clamp: low = {} is not at most high = {}", low, high);
  return elementwise<ops::Clamp>(x, {low, high});
}

Var dropout(const Var& x, float p, std::uint64_t purpose) {
  if (!(p >= 0 && p < 1)) throw UsageError("dropout: p = {} is not in [0, 1)", p);
  Tape& tape = x.tape();
  const Pass& pass = tape.pass();
  if (!pass.training || p == 0) return x;
  const RandomKey key{.seed = pass.seed, .purpose = purpose, .step = pass.step, .shard = pass.shard};
  const Tensor y = empty_like(tape.backend(), x.value());
  tape.backend().run(ops::Dropout{x.value(), p, key, y});
  return tape.record(y, {&x}, [x = x.without_value(), p, key](Tape& t, const Tensor& dy) {
    give_new(t, x, [&](const Tensor& dx) { t.backend().run(ops::Dropout{dy, p, key, dx}); });
  });
}

}  // namespace lockstep
