// Embeddings, positions and attention.
#include <algorithm>
#include <array>
#include <limits>

#include "autograd/functions/support.h"
#include "lockstep/autograd/key_value_cache.h"
#include "lockstep/ops/gather.h"
#include "ops/strided_copy.h"

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
  if (cached && op.bias) throw UsageError("attention: a pass with a cache does not support a bias");
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

/// Added to the scores of a key that nothing sees: its exponential is 0 beside those of others. Finite, and
/// small enough for the differences of scores, so that a row without keys is no NaN.
constexpr float hidden = -65536;

/// The bias of scores of this shape as float32 of four dimensions; a Var{} if there is none.
Var bias_of(Tape& tape, const ops::AttentionSizes& s, const AttentionBias& given) {
  Var bias = given.bias.value() ? plain(to_float32(given.bias)) : Var();
  if (bias.value() && bias.shape().rank() == 3)
    bias = reshape(bias, {1, bias.shape()[0], bias.shape()[1], bias.shape()[2]});
  if (given.key_mask) {
    ops::require_shape("attention", "the key mask", given.key_mask, {s.batch, s.keys});
    const Tensor mask = tape.backend().in_type(given.key_mask, DType::float32);
    const Var seen = tape.constant(mask.reshape({s.batch, 1, 1, s.keys}));
    const Var of_keys = hidden * (1.0f - minimum(abs(seen) * 1e30f, 1.0f));
    bias = bias.value() ? bias + of_keys : of_keys;
  }
  if (!bias.value() || bias.shape().rank() != 4 || bias.shape()[0] != 1 || tape.pass().shards == 1)
    return bias;
  return expand(bias, bias.shape().with(0, s.batch));  // a shard has rows of its own
}

/// The backward of an attention, and the gradient of its bias.
void run_backward(Tape& tape, ops::AttentionBackward op, const Var& bias) {
  if (bias.needs_gradient()) {
    const ops::AttentionSizes s = op.sizes();
    op.dbias = tape.backend().empty({s.batch, s.heads, s.queries, s.keys});
  }
  tape.run_by_shard(op);
  if (op.dbias) add_broadcast_gradient(tape, bias, op.dbias);
}

/// The attention of q, k and v; it has q's shape.
Var attend(const Var& q, const Var& k, const Var& v, int heads, bool causal, const Tensor& positions,
           const AttentionBias& given) {
  const auto all = [](const Var& x) { return ops::all_columns(x.value()); };
  Tape& tape = q.tape();
  const Var bias =
      bias_of(tape, ops::attention_sizes("attention", all(q), all(k), all(v), heads, causal, 2), given);
  const Tensor y = empty_like(tape.backend(), q.value()),
               saved = run_attention(
                   tape, {all(q), all(k), all(v), heads, causal, y, {}, positions, 0, bias.value()});
  return tape.record(y, {&q, &k, &v, &bias}, [=](Tape& t, const Tensor& dy) {
    const Tensor dq = empty_like(t.backend(), q.value()), dk = empty_like(t.backend(), k.value()),
                 dv = empty_like(t.backend(), v.value());
    run_backward(t,
                 {dy, all(q), all(k), all(v), heads, causal, y, saved, ops::all_columns(dq),
                  ops::all_columns(dk), ops::all_columns(dv), positions, bias.value()},
                 bias);
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

Var attention(const Var& q, const Var& k, const Var& v, int heads, bool causal, const Tensor& positions,
              const AttentionBias& bias) {
  for (const Var* const x : {&q, &k, &v}) require_rank("attention", *x, 3);
  return attend(q, k, v, heads, causal, positions, bias);
}

Var attention(const Var& q, const Var& k, const Var& v, bool causal, const Tensor& positions,
              const AttentionBias& bias) {
  for (const Var* const x : {&q, &k, &v}) require_rank("attention", *x, 4);
  return attend(plain(q), plain(k), plain(v), 1, causal, positions, bias);
}

Var attention(const Var& qkv, int heads, bool causal, HeadOrder order, const Tensor& positions,
              const AttentionBias& given) {
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
  const Var bias = bias_of(
      tape, ops::attention_sizes("attention", part(x, 0), part(x, 1), part(x, 2), heads, causal, 2), given);
  const Tensor y = tape.backend().empty(x.shape().with(-1, channels), x.dtype()),
               saved = run_attention(
                   tape,
                   {part(x, 0), part(x, 1), part(x, 2), heads, causal, y, {}, positions, 0, bias.value()});
  return tape.record(
      y, {&qkv, &bias}, [qkv, bias, heads, causal, y, saved, part, positions](Tape& t, const Tensor& dy) {
        const Tensor d = empty_like(t.backend(), qkv.value());
        run_backward(t,
                     {dy, part(qkv.value(), 0), part(qkv.value(), 1), part(qkv.value(), 2), heads, causal, y,
                      saved, part(d, 0), part(d, 1), part(d, 2), positions, bias.value()},
                     bias);
        t.add_gradient(qkv, d);
      });
}

Tensor keep_steps(Tape& tape, const Tensor& x, const Tensor& lengths, double value) {
  const Tensor y = empty_like(tape.backend(), x);
  tape.backend().run(ops::KeepSteps{x, lengths, value, false, y});
  return y;
}

Var keep_steps(const Var& input, const Tensor& lengths) {
  const Var x = plain(input);
  return record_unary(keep_steps(x.tape(), x.value(), lengths), x,
                      [lengths](const Tensor& dy, const Tensor& dx) {
                        return ops::KeepSteps{dy, lengths, 0, false, dx};
                      });
}

Tensor length_mask(Tape& tape, const Tensor& lengths, std::int64_t steps) {
  const Tensor mask = tape.backend().empty({lengths.numel(), steps});
  tape.backend().fill(mask, 1);
  tape.backend().run(ops::KeepSteps{mask, lengths, 0, false, mask, "length_mask"});
  return mask;
}

namespace {

/// The sum of the steps that count, or the last of them; divided by `counts`, float32 [N, 1, ...], if there
/// are some.
Var over_lengths(const char* function, const Var& input, const Tensor& lengths, bool last,
                 const Tensor& counts) {
  const Var x = plain(input);
  const Shape& s = x.shape();
  Tape& tape = x.tape();
  kernels::Backend& backend = tape.backend();
  const Tensor seen = empty_like(backend, x.value());
  backend.run(ops::KeepSteps{x.value(), lengths, 0, last, seen, function});
  const Shape one = s.with(1, 1);
  const Tensor sums = backend.empty(one), y = backend.empty(one, x.value().dtype());
  backend.run(ops::ReduceAxes<ops::Total>{seen, counts ? sums : y});
  if (counts) backend.run(ops::Map<ops::Quotient>{{}, {sums, counts}, y});
  Shape result{s[0]};
  for (int d = 2; d < s.rank(); ++d) result.append(s[d]);
  return tape.record(y.reshape(result), {&x},
                     [x = x.without_value(), lengths, last, counts, one](Tape& t, const Tensor& dy) {
                       add_new_gradient(t, x, [&](const Tensor& dx) {
                         const Tensor of_one = dy.reshape(one);
                         if (counts)
                           t.backend().run(ops::Map<ops::Quotient>{{}, {of_one, counts}, dx});
                         else
                           t.backend().run(ops::StridedCopy{ops::StridedView(of_one).expanded(dx.shape()),
                                                            ops::StridedView(dx)});
                         t.backend().run(ops::KeepSteps{dx, lengths, 0, last, dx});
                       });
                     });
}

}  // namespace

Var mean_over_lengths(const Var& x, const Tensor& lengths) {
  constexpr const char* function = "mean_over_lengths";
  const int rank = x.shape().rank();
  if (rank < 2 || !(lengths.shape() == Shape{x.shape()[0]}))
    throw UsageError("{}: lengths of shape {} do not fit sequences of shape {}", function,
                     to_string(lengths.shape()), to_string(x.shape()));
  kernels::Backend& backend = x.tape().backend();
  Shape column{lengths.numel()};
  while (column.rank() < rank) column.append(1);
  const Tensor floats = backend.in_type(lengths, DType::float32).reshape(column),
               counts = backend.empty(column);
  backend.run(
      ops::Map<ops::Value<ops::Clamp>>{{{1, std::numeric_limits<float>::infinity()}}, {floats}, counts});
  return over_lengths(function, x, lengths, false, counts);
}

Var last_of_lengths(const Var& x, const Tensor& lengths) {
  return over_lengths("last_of_lengths", x, lengths, true, {});
}

}  // namespace lockstep
