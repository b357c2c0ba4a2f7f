// Embeddings, positions and attention.
#include <algorithm>
#include <array>

#include "autograd/functions/support.h"
#include "lockstep/ops/embedding.h"

namespace lockstep {
namespace {

void require_heads(const Var& x, std::int64_t channels, int heads) {
  require_rank("attention", x, 3);
  if (heads < 1 || channels % heads != 0)
    throw UsageError("attention: {} heads do not divide {} channels", heads, channels);
}

}  // namespace

Var embedding(const Tensor& indices, const Var& weight) {
  const Shape& shape = indices.shape();
  if (weight.shape().rank() != 2 || shape.rank() >= Shape::max_rank)
    throw UsageError("embedding: indices of shape {} into a weight of shape {}", to_string(shape),
                     to_string(weight.shape()));
  std::array<std::int64_t, Shape::max_rank> extents{};
  std::copy(shape.begin(), shape.end(), extents.begin());
  const auto rank = static_cast<std::size_t>(shape.rank());
  extents[rank] = weight.shape()[1];
  Tape& tape = weight.tape();
  const Tensor y = tape.backend().empty(Shape(std::span<const std::int64_t>(extents.data(), rank + 1)),
                                        tape.pass().compute);
  tape.backend().run(ops::Embedding{indices, weight.value(), y});
  return tape.record(y, {&weight}, [indices, weight = weight.without_value()](Tape& t, const Tensor& dy) {
    t.into(weight, [&](const Tensor& dweight, bool accumulate) {
      t.backend().run(ops::EmbeddingBackward{dy, indices, dweight, accumulate});
    });
  });
}

Var add_positions(const Var& x, const Var& weight) {
  require_rank("add_positions", x, 3);
  const std::int64_t time = x.shape()[1];
  if (weight.shape().rank() != 2 || time > weight.shape()[0] || x.shape()[2] != weight.shape()[1])
    throw UsageError("add_positions: an input of shape {} does not fit positions of shape {}",
                     to_string(x.shape()), to_string(weight.shape()));
  Tape& tape = x.tape();
  const Tensor y = empty_like(tape.backend(), x.value());
  tape.backend().run(ops::add_rows(x.value(), weight.value().rows(0, time), y));
  return tape.record(
      y, {&x, &weight},
      [x = x.without_value(), weight = weight.without_value(), time](Tape& t, const Tensor& dy) {
        t.into(weight, [&](const Tensor& dweight, bool accumulate) {
          t.backend().run(ops::SumRows{dy, dweight.rows(0, time), accumulate});
          const std::int64_t context = dweight.size(0);
          if (!accumulate && time < context) t.backend().fill(dweight.rows(time, context), 0);
        });
        t.give(x, dy);
      });
}

Var rotary(const Var& given, RotaryLayout layout, float base, std::int64_t first_position) {
  const Var x = plain(given);
  Tape& tape = x.tape();
  const Tensor y = empty_like(tape.backend(), x.value());
  tape.backend().run(ops::Rotary{x.value(), layout, base, first_position, false, y});
  return tape.record(y, {&x},
                     [x = x.without_value(), layout, base, first_position](Tape& t, const Tensor& dy) {
                       give_new(t, x, [&](const Tensor& dx) {
                         t.backend().run(ops::Rotary{dy, layout, base, first_position, true, dx});
                       });
                     });
}

Var attention(const Var& q, const Var& k, const Var& v, int heads, bool causal) {
  if (!(q.shape() == k.shape()) || !(q.shape() == v.shape()))
    throw UsageError("attention: q {}, k {} and v {} must have one shape", to_string(q.shape()),
                     to_string(k.shape()), to_string(v.shape()));
  require_rank("attention", q, 3);
  const std::int64_t batch = q.shape()[0], time = q.shape()[1], channels = q.shape()[2];
  require_heads(q, channels, heads);
  Tape& tape = q.tape();
  const Tensor y = empty_like(tape.backend(), q.value());
  const Tensor saved = tape.backend().empty(tape.backend().attention_saved_shape(batch, heads, time));
  tape.backend().run(ops::Attention{
      {q.value(), 0, channels}, {k.value(), 0, channels}, {v.value(), 0, channels}, heads, causal, y, saved});
  return tape.record(
      y, {&q, &k, &v}, [q, k, v, heads, causal, y, saved, channels](Tape& t, const Tensor& dy) {
        const Tensor dq = empty_like(t.backend(), q.value()), dk = empty_like(t.backend(), k.value()),
                     dv = empty_like(t.backend(), v.value());
        t.backend().run(ops::AttentionBackward{dy,
                                               {q.value(), 0, channels},
                                               {k.value(), 0, channels},
                                               {v.value(), 0, channels},
                                               heads,
                                               causal,
                                               y,
                                               saved,
                                               {dq, 0, channels},
                                               {dk, 0, channels},
                                               {dv, 0, channels}});
        t.give(q, dq);
        t.give(k, dk);
        t.give(v, dv);
      });
}

Var attention(const Var& qkv, int heads, bool causal) {
  require_rank("attention", qkv, 3);
  const std::int64_t batch = qkv.shape()[0], time = qkv.shape()[1], channels = qkv.shape()[2] / 3;
  if (qkv.shape()[2] % 3 != 0)
    throw UsageError("attention: q, k and v side by side need a width of three equal parts, not {}",
                     qkv.shape()[2]);
  require_heads(qkv, channels, heads);
  Tape& tape = qkv.tape();
  const Tensor y = tape.backend().empty({batch, time, channels}, qkv.value().dtype());
  const Tensor saved = tape.backend().empty(tape.backend().attention_saved_shape(batch, heads, time));
  const auto part = [channels](const Tensor& matrix, int index) {
    return ops::Columns{matrix, index * channels, channels};
  };
  tape.backend().run(ops::Attention{part(qkv.value(), 0), part(qkv.value(), 1), part(qkv.value(), 2), heads,
                                    causal, y, saved});
  return tape.record(y, {&qkv}, [qkv, heads, causal, y, saved, part](Tape& t, const Tensor& dy) {
    give_new(t, qkv, [&](const Tensor& d) {
      t.backend().run(ops::AttentionBackward{dy, part(qkv.value(), 0), part(qkv.value(), 1),
                                             part(qkv.value(), 2), heads, causal, y, saved, part(d, 0),
                                             part(d, 1), part(d, 2)});
    });
  });
}

}  // namespace lockstep
