// Embeddings, positions and attention.
#include <algorithm>
#include <array>
#include <limits>

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

namespace {

/// lengths as float32 [sequences, 1]. DataError, as an index, for one outside [0, steps].
Tensor checked_lengths(Tape& tape, const char* function, const Tensor& lengths, std::int64_t steps) {
  if (lengths.shape().rank() != 1 || steps < 0)
    throw UsageError("{}: lengths of shape {} for {} steps; there must be one for each sequence", function,
                     to_string(lengths.shape()), steps);
  kernels::Backend& backend = tape.backend();
  const Tensor ones = backend.empty({steps + 1}), numbers = backend.empty({steps + 1}),
               floats = backend.empty(lengths.shape());
  backend.fill(ones, 1);
  backend.run(ops::CumulativeSum{ones, 0, false, numbers});
  backend.run(ops::Map<ops::Shifted>{{1, -1}, {numbers}, numbers});
  backend.run(ops::Gather{numbers, lengths, 0, floats, function});
  return floats.reshape({lengths.numel(), 1});
}

/// float32 [sequences, steps]: 1 for the first `lengths` steps, which are float32 [sequences, 1], then 0.
Tensor mask_of(Tape& tape, const Tensor& lengths, std::int64_t steps) {
  kernels::Backend& backend = tape.backend();
  const Tensor ones = backend.empty({steps}), ends = backend.empty({steps}),
               mask = backend.empty({lengths.numel(), steps});
  backend.fill(ones, 1);
  backend.run(ops::CumulativeSum{ones, 0, false, ends});
  backend.run(ops::Map<ops::Difference>{{}, {lengths, ends}, mask});  // -1 or less after the last step
  backend.run(ops::Map<ops::Value<ops::Clamp>>{{{-1, 0}}, {mask}, mask});
  backend.run(ops::Map<ops::Shifted>{{1, 1}, {mask}, mask});
  return mask;
}

}  // namespace

Tensor length_mask(Tape& tape, const Tensor& lengths, std::int64_t steps) {
  return mask_of(tape, checked_lengths(tape, "length_mask", lengths, steps), steps);
}

Var mean_over_lengths(const Var& input, const Tensor& lengths) {
  constexpr const char* function = "mean_over_lengths";
  const Var x = plain(input);
  const Shape& s = x.shape();
  if (s.rank() < 2 || !(lengths.shape() == Shape{s[0]}))
    throw UsageError("{}: lengths of shape {} do not fit sequences of shape {}", function,
                     to_string(lengths.shape()), to_string(s));
  Tape& tape = x.tape();
  kernels::Backend& backend = tape.backend();
  const Tensor floats = checked_lengths(tape, function, lengths, s[1]), zero = backend.empty({});
  Shape rows{s[0], s[1]}, one_row{s[0], 1}, result{s[0]};
  for (int d = 2; d < s.rank(); ++d) {
    rows.append(1);
    one_row.append(1);
    result.append(s[d]);
  }
  const Tensor mask = mask_of(tape, floats, s[1]).reshape(rows), counts = floats.reshape(one_row),
               seen = backend.empty(s), sums = backend.empty(s.with(1, 1)),
               y = backend.empty(sums.shape(), x.value().dtype());
  backend.fill(zero, 0);
  backend.run(ops::Map<ops::Where>{{}, {mask, x.value(), zero}, seen});
  backend.run(ops::ReduceAxes<ops::Total>{seen, sums});
  backend.run(
      ops::Map<ops::Value<ops::Clamp>>{{{1, std::numeric_limits<float>::infinity()}}, {counts}, counts});
  backend.run(ops::Map<ops::Quotient>{{}, {sums, counts}, y});
  return tape.record(
      y.reshape(result), {&x},
      [x = x.without_value(), mask, counts, zero, shape = sums.shape()](Tape& t, const Tensor& dy) {
        add_new_gradient(t, x, [&](const Tensor& dx) {
          const Tensor shares = t.backend().empty(shape);
          t.backend().run(ops::Map<ops::Quotient>{{}, {dy.reshape(shape), counts}, shares});
          t.backend().run(ops::Map<ops::Where>{{}, {mask, shares, zero}, dx});
        });
      });
}

}  // namespace lockstep
