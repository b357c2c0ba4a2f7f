// Embeddings, positions and attention.
#include <algorithm>
#include <array>

#include "autograd/functions/support.h"
#include "lockstep/autograd/key_value_cache.h"
#include "lockstep/ops/gather.h"

namespace lockstep {
namespace {

/// Runs an attention into op.y, and returns what its backward reads. With a cache the keys and values of
/// earlier positions come before its own, and there is no backward.
Tensor run_attention(Tape& tape, ops::Attention op) {
  kernels::Backend& backend = tape.backend();
  const ops::AttentionSizes s = ops::attention_sizes(op.name, op.q, op.k, op.v, op.heads, op.causal, 2);
  if (op.causal && s.queries != s.keys)
    throw UsageError("attention: a causal mask needs as many keys as queries, not {} for {}", s.keys,
                     s.queries);
  constexpr std::int64_t few = 8;  // queries, for which products are slower than rows
  const bool cached = op.causal && tape.pass().cache;
  if (cached) {
    const KeyValueCache::Rows rows = tape.pass().cache->append(backend, op.k, op.v, s);
    op.k = rows.keys;
    op.v = rows.values;
    op.keys = rows.count;
  }
  if (!cached || s.queries > few)
    op.saved = backend.empty(backend.attention_saved_shape(s.batch, static_cast<int>(s.heads), s.queries,
                                                           cached ? op.keys : s.keys));
  tape.run_by_shard(op);
  return op.saved;
}

/// The attention of q, k and v; it has q's shape.
Var attend(const Var& q, const Var& k, const Var& v, int heads, bool causal, const Tensor& positions) {
  const auto all = [](const Var& x) { return ops::all_columns(x.value()); };
  Tape& tape = q.tape();
  const Tensor y = empty_like(tape.backend(), q.value()),
               saved = run_attention(tape, {all(q), all(k), all(v), heads, causal, y, {}, positions});
  return tape.record(y, {&q, &k, &v}, [=](Tape& t, const Tensor& dy) {
    const Tensor dq = empty_like(t.backend(), q.value()), dk = empty_like(t.backend(), k.value()),
                 dv = empty_like(t.backend(), v.value());
    t.run_by_shard(ops::AttentionBackward{dy, all(q), all(k), all(v), heads, causal, y, saved,
                                          ops::all_columns(dq), ops::all_columns(dk), ops::all_columns(dv),
                                          positions});
    t.add_gradient(q, dq);
    t.add_gradient(k, dk);
    t.add_gradient(v, dv);
  });
}

}  // namespace

Var embedding(const Tensor& indices, const Var& weight) {
  Shape shape = indices.shape();
  if (weight.shape().rank() != 2 || shape.rank() >= Shape::max_rank)
    throw UsageError(
        "embedding: indices of shape {} into a weight of shape {}; the weight must be [rows, width], and the "
        "indices have at most {} dimensions",
        to_string(shape), to_string(weight.shape()), Shape::max_rank - 1);
  shape.append(weight.shape()[1]);
  Tape& tape = weight.tape();
  const Tensor y = tape.backend().empty(shape, tape.pass().compute);
  tape.backend().run(ops::Embedding{indices, weight.value(), y});
  return tape.record(y, {&weight}, [indices, weight = weight.without_value()](Tape& t, const Tensor& dy) {
    t.write_gradient(weight, [&](const Tensor& dweight, bool accumulate) {
      t.run_by_shard(ops::EmbeddingBackward{dy, indices, dweight, accumulate});
    });
  });
}

Var add_positions(const Var& x, const Var& weight, const Tensor& positions) {
  require_rank("add_positions", x, 3);
  if (positions) return add(x, embedding(positions, weight));
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
        t.write_gradient(weight, [&](const Tensor& dweight, bool accumulate) {
          const std::int64_t context = weight.shape()[0], shards = t.pass().shards,
                             samples = dy.size(0) / shards;
          for (std::int64_t i = 0; i < shards; ++i) {
            const Tensor of_shard =
                dweight.reshape({shards * context, dweight.size(-1)}).rows(i * context, (i + 1) * context);
            t.backend().run(
                ops::SumRows{dy.rows(i * samples, (i + 1) * samples), of_shard.rows(0, time), accumulate});
            if (!accumulate && time < context) t.backend().fill(of_shard.rows(time, context), 0);
          }
        });
        t.add_gradient(x, dy);
      });
}

Var rotary(const Var& input, const RotaryOptions& options) {
  const Var x = plain(input);
  Tape& tape = x.tape();
  const Tensor y = empty_like(tape.backend(), x.value());
  const auto turned = [options](const Tensor& from, bool back, const Tensor& to) {
    return ops::Rotary{from, options.layout,  options.base,       options.first_position, back,
                       to,   options.scaling, options.time_first, options.positions};
  };
  tape.backend().run(turned(x.value(), false, y));
  return record_unary(y, x, [turned](const Tensor& dy, const Tensor& dx) { return turned(dy, true, dx); });
}

Var attention(const Var& q, const Var& k, const Var& v, int heads, bool causal, const Tensor& positions) {
  for (const Var* const x : {&q, &k, &v}) require_rank("attention", *x, 3);
  return attend(q, k, v, heads, causal, positions);
}

Var attention(const Var& q, const Var& k, const Var& v, bool causal, const Tensor& positions) {
  for (const Var* const x : {&q, &k, &v}) require_rank("attention", *x, 4);
  return attend(plain(q), plain(k), plain(v), 1, causal, positions);
}

Var attention(const Var& qkv, int heads, bool causal, HeadOrder order, const Tensor& positions) {
  require_rank("attention", qkv, 3);
  const std::int64_t channels = qkv.shape()[2] / 3;
  if (qkv.shape()[2] % 3 != 0)
    throw UsageError("attention: q, k and v side by side need a width of three equal parts, not {}",
                     qkv.shape()[2]);
  const std::int64_t width = heads > 0 ? channels / heads : 0;
  const auto part = [channels, width, order](const Tensor& matrix, int index) {
    return order == HeadOrder::thirds ? ops::Columns{matrix, index * channels, channels}
                                      : ops::Columns{matrix, index * width, channels, 3 * width};
  };
  const Tensor& x = qkv.value();
  Tape& tape = qkv.tape();
  const Tensor y = tape.backend().empty(x.shape().with(-1, channels), x.dtype()),
               saved =
                   run_attention(tape, {part(x, 0), part(x, 1), part(x, 2), heads, causal, y, {}, positions});
  return tape.record(y, {&qkv}, [qkv, heads, causal, y, saved, part, positions](Tape& t, const Tensor& dy) {
    add_new_gradient(t, qkv, [&](const Tensor& d) {
      t.run_by_shard(ops::AttentionBackward{dy, part(qkv.value(), 0), part(qkv.value(), 1),
                                            part(qkv.value(), 2), heads, causal, y, saved, part(d, 0),
                                            part(d, 1), part(d, 2), positions});
    });
  });
}

}  // namespace lockstep
