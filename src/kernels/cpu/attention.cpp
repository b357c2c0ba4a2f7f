// Scaled dot-product attention (Vaswani et al., 2017), head by head on columns of the projections' matrices.
//
// Queries are processed in strips of rows. With a causal mask the strip [begin, end) needs only the keys [0,
// end), so about half of all products are skipped. Threads share the heads. In the backward they share the
// key heads, because sums for the keys are over all query heads that read them.
//
// If rows are short, forward saves the probabilities for backward. If they are long, that memory costs more
// time than a product: forward saves the logarithms of the rows' sums of exponentials, and backward computes
// each strip's probabilities again from them (Dao et al., "FlashAttention", 2022).
//
// Rotary positions: the angles of all positions are computed once, then every row of every head is rotated.
#include <omp.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "lockstep/ops/attention.h"
#include "lockstep/ops/check.h"
#include "lockstep/ops/math.h"

namespace lockstep::kernels {
namespace {

using ops::exponential;

constexpr std::int64_t strip_rows = 48;  // a multiple of the products' groups of rows (gemm.h)
constexpr std::int64_t max_kept_keys = 512;
constexpr std::int64_t lanes = sizeof(Floats) / sizeof(float);

std::int64_t padded(std::int64_t count) { return round_up(count, lanes); }

/// Floats between the starts of rows of `count`: whole vectors (gemm.h).
std::int64_t row_stride(std::int64_t count) { return spread_stride(padded(count)); }

std::int64_t strip_end(const ops::AttentionSizes& sizes, std::int64_t begin) {
  return std::min(sizes.queries, begin + strip_rows);
}

bool keeps_probabilities(std::int64_t keys) { return keys <= max_kept_keys; }

/// The number of keys that rows before `end` attend to.
std::int64_t keys_up_to(const ops::AttentionSizes& sizes, std::int64_t end) {
  return sizes.causal ? sizes.keys - sizes.queries + end : sizes.keys;
}

/// A row of queries attends to keys in [first, end).
struct KeysOfRow {
  std::int64_t first, end;
};
/// positions: those of the image's queries, or null.
KeysOfRow keys_of_row(const ops::AttentionSizes& sizes, const std::int64_t* positions, std::int64_t row) {
  const std::int64_t end = keys_up_to(sizes, row + 1);
  return {positions ? std::clamp<std::int64_t>(end - 1 - positions[row], 0, end - 1) : 0, end};
}
const std::int64_t* positions_of(const Tensor& positions, const ops::AttentionSizes& sizes,
                                 std::int64_t image) {
  return positions ? positions.data<std::int64_t>() + image * sizes.queries : nullptr;
}

/// The rows of a head's bias, or null.
struct BiasOfHead {
  const float* data;
  std::int64_t stride;
};
BiasOfHead bias_of(const Tensor& bias, const ops::AttentionSizes& sizes, std::int64_t item) {
  if (!bias) return {};
  const ops::HeadStrides strides = ops::bias_strides(bias);
  return {bias.data<float>() + item / sizes.heads * strides.image + item % sizes.heads * strides.head,
          strides.row};
}
/// Adds its rows from `begin` on to scores, which are not scaled yet.
void add_bias(const ops::AttentionSizes& sizes, const BiasOfHead& bias, std::int64_t begin, std::int64_t rows,
              std::int64_t keys, float* scores, std::int64_t stride) {
  const float factor = std::sqrt(static_cast<float>(sizes.width));
  for (std::int64_t r = 0; bias.data && r < rows; ++r) {
    const float* const from = bias.data + (begin + r) * bias.stride;
    float* const row = scores + r * stride;
#pragma GCC ivdep
    for (std::int64_t j = 0; j < keys; ++j) row[j] += factor * from[j];
  }
}

float scale_of(const ops::AttentionSizes& sizes) { return 1.0f / std::sqrt(static_cast<float>(sizes.width)); }

/// One head's [time, width], with rows `stride` elements apart. E: float or BFloat16.
template <class E>
struct Head {
  E* data;
  std::int64_t stride;

  E* row(std::int64_t index) const { return data + index * stride; }
};

template <class E>
struct HeadView {
  E* data;
  ops::HeadStrides strides;

  /// Head number `item`, counted over images of `heads` heads.
  Head<E> at(std::int64_t item, std::int64_t heads) const {
    return {data + item / heads * strides.image + item % heads * strides.head, strides.row};
  }
};

template <class E>
HeadView<E> heads_of(const ops::Columns& columns, const ops::AttentionSizes& sizes) {
  return {columns.matrix.data<E>() + columns.first, ops::head_strides(columns, sizes.width)};
}

// Rows of projections are often multiples of 1 KiB apart, and a cache then holds few of them: products read
// copies. Copies of bf16 rows are float32.

/// Copies rows [begin, end) of a head side by side.
template <class E>
Matrix copied(const Head<E>& head, std::int64_t begin, std::int64_t end, std::int64_t width, float* to) {
  const std::int64_t stride = row_stride(width);
  for (std::int64_t t = begin; t < end; ++t) {
    const E* const from = head.row(t);
    float* const row = to + (t - begin) * stride;
#pragma GCC ivdep
    for (std::int64_t d = 0; d < width; ++d) row[d] = to_float(from[d]);
  }
  return {to, stride};
}

/// Rows from `begin` on in a form that a product can read.
Matrix readable(const Head<float>& head, std::int64_t begin, std::int64_t, std::int64_t, float*) {
  return {head.row(begin), head.stride};
}
Matrix readable(const Head<BFloat16>& head, std::int64_t begin, std::int64_t end, std::int64_t width,
                float* scratch) {
  return copied(head, begin, end, width, scratch);
}

/// Memory to which a product can write rows from `begin`; store_rows() copies them to the head.
struct OutputRows {
  float* data;
  std::int64_t stride;
};
OutputRows output_rows(const Head<float>& head, std::int64_t begin, std::int64_t, float*) {
  return {head.row(begin), head.stride};
}
OutputRows output_rows(const Head<BFloat16>&, std::int64_t, std::int64_t width, float* scratch) {
  return {scratch, row_stride(width)};
}
void store_rows(const OutputRows&, const Head<float>&, std::int64_t, std::int64_t, std::int64_t) {}
void store_rows(const OutputRows& rows, const Head<BFloat16>& head, std::int64_t begin, std::int64_t end,
                std::int64_t width) {
  for (std::int64_t t = begin; t < end; ++t) {
    const float* const from = rows.data + (t - begin) * rows.stride;
    BFloat16* const row = head.row(t);
#pragma GCC ivdep
    for (std::int64_t d = 0; d < width; ++d) store(row[d], from[d]);
  }
}

/// Prefetches rows [begin, end) of the next head: a head's rows are too short for the hardware prefetcher.
template <class E>
void prefetch(const Head<E>& head, std::int64_t begin, std::int64_t end, std::int64_t width) {
  constexpr std::int64_t line = 64 / sizeof(E);
  for (std::int64_t t = begin; t < end; ++t) {
    for (std::int64_t d = 0; d < width; d += line) __builtin_prefetch(head.row(t) + d);
  }
}

/// The number of floats of such copies, and of a strip's [rows, keys].
std::int64_t copied_floats(const ops::AttentionSizes& sizes, std::int64_t rows) {
  return padded(rows * row_stride(sizes.width));
}
std::int64_t transposed_floats(const ops::AttentionSizes& sizes) {
  return sizes.width * row_stride(sizes.keys);
}
std::int64_t strip_floats(const ops::AttentionSizes& sizes) { return strip_rows * row_stride(sizes.keys); }

/// The number of floats of a copy of all keys' rows, or of a strip's, which only bf16 needs.
template <class E>
std::int64_t scratch_floats(const ops::AttentionSizes& sizes) {
  const std::int64_t strip = std::min(strip_rows, sizes.queries);
  return std::is_same_v<E, float> ? 0 : copied_floats(sizes, std::max(sizes.keys, strip));
}

/// A whole head of keys or values as [width, keys]. scratch: memory for all its rows.
template <class E>
Matrix transposed(const Head<E>& head, const ops::AttentionSizes& sizes, float* scratch, float* to) {
  const std::int64_t stride = row_stride(sizes.keys);
  const Matrix rows = readable(head, 0, sizes.keys, sizes.width, scratch);
  transpose(rows.data, rows.stride, sizes.keys, sizes.width, to, stride);
  return {to, stride};
}

/// Hands out parts of one block of working memory.
struct Workspace {
  float* next;

  float* take(std::int64_t count) { return std::exchange(next, next + count); }
};

/// Replaces the scores of a row's keys by e^(scale * score - scale * the largest), and the others up to
/// `end`, which may hold anything, by zeros. Returns the logarithm of the sum of e^(scale * score).
float exponentials_of_row(float* row, const KeysOfRow& of_row, std::int64_t end, float scale,
                          float& sum_of_row) {
  const std::int64_t keys = of_row.end;
  std::fill(row, row + of_row.first, -std::numeric_limits<float>::infinity());
  const float max = scale * largest(row, keys);  // scale > 0
  const std::int64_t vectors = padded(keys);
#pragma GCC ivdep
  for (std::int64_t j = 0; j < vectors; ++j) row[j] = exponential(std::fma(row[j], scale, -max));
  std::fill(row + keys, row + std::max(vectors, end), 0.0f);
  sum_of_row = sum(row, vectors);
  return max + std::log(sum_of_row);
}

template <class E>
std::int64_t forward_floats(const ops::AttentionSizes& sizes) {
  return scratch_floats<E>(sizes) + transposed_floats(sizes) + copied_floats(sizes, sizes.keys) +
         strip_floats(sizes);
}

template <class E>
struct ForwardHead {
  Head<E> q, k, v, y;
  float* saved;  ///< [queries, keys] probabilities, or [queries] logarithms
  const std::int64_t* positions;
  BiasOfHead bias;
};

template <class E>
void forward_head(const ops::AttentionSizes& sizes, const ForwardHead<E>& head, const ForwardHead<E>& next,
                  Workspace work) {
  const std::int64_t width = sizes.width;
  const float scale = scale_of(sizes);
  float* const scratch = work.take(scratch_floats<E>(sizes));  // used for one matrix at a time
  const Matrix keys_transposed = transposed(head.k, sizes, scratch, work.take(transposed_floats(sizes))),
               values = copied(head.v, 0, sizes.keys, width, work.take(copied_floats(sizes, sizes.keys)));
  float* const strip = work.take(strip_floats(sizes));
  const std::int64_t stride = row_stride(sizes.keys);
  const bool keeps = keeps_probabilities(sizes.keys);
  for (std::int64_t begin = 0; begin < sizes.queries; begin += strip_rows) {
    const std::int64_t end = strip_end(sizes, begin), rows = end - begin, keys = keys_up_to(sizes, end);
    prefetch(next.q, begin, end, width);
    for (const Head<E>& part : {next.k, next.v}) prefetch(part, begin, std::min(end, sizes.keys), width);
    multiply(rows, keys, width, readable(head.q, begin, end, width, scratch), keys_transposed, 0.0f, strip,
             stride);
    add_bias(sizes, head.bias, begin, rows, keys, strip, stride);
    float sums[strip_rows];
    for (std::int64_t r = 0; r < rows; ++r) {
      const float log_sum_exp = exponentials_of_row(
          strip + r * stride, keys_of_row(sizes, head.positions, begin + r), keys, scale, sums[r]);
      if (!keeps) head.saved[begin + r] = log_sum_exp;
    }
    const OutputRows y = output_rows(head.y, begin, width, scratch);
    multiply(rows, width, keys, {strip, stride}, values, 0.0f, y.data, y.stride);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* const y_row = y.data + r * y.stride;
      const float factor = 1.0f / sums[r];
#pragma GCC ivdep
      for (std::int64_t d = 0; d < width; ++d) y_row[d] *= factor;
      if (!keeps) continue;
      const float* const row = strip + r * stride;
      float* const probabilities = head.saved + (begin + r) * sizes.keys;
#pragma GCC ivdep
      for (std::int64_t j = 0; j < keys; ++j) probabilities[j] = factor * row[j];
    }
    store_rows(y, head.y, begin, end, width);
  }
}

/// The attention of few queries, without copies of all keys and values, which products would need.
template <class E>
void attend_by_row(const ops::AttentionSizes& sizes, const ForwardHead<E>& head, Workspace work) {
  const std::int64_t width = sizes.width;
  float *const scores = work.take(padded(sizes.keys)), *const total = work.take(padded(width));
  for (std::int64_t r = 0; r < sizes.queries; ++r) {
    const KeysOfRow keys = keys_of_row(sizes, head.positions, r);
    for (std::int64_t j = keys.first; j < keys.end; ++j) scores[j] = dot(head.q.row(r), head.k.row(j), width);
    add_bias(sizes, head.bias, r, 1, keys.end, scores, 0);
    float sum_of_row = 0;
    exponentials_of_row(scores, keys, keys.end, scale_of(sizes), sum_of_row);
    std::fill(total, total + width, 0.0f);
    for (std::int64_t j = keys.first; j < keys.end; ++j) {
      const E* const value = head.v.row(j);
#pragma GCC ivdep
      for (std::int64_t d = 0; d < width; ++d) total[d] += scores[j] * to_float(value[d]);
    }
    for (std::int64_t d = 0; d < width; ++d) store(head.y.row(r)[d], total[d] / sum_of_row);
  }
}

/// dp -> ds = scale * p * (dp - centre) over a row's first `keys`; zeros from there to `end`.
void softmax_backward_row(const float* p, float* dp, std::int64_t keys, std::int64_t end, float scale,
                          float centre) {
#pragma GCC ivdep
  for (std::int64_t j = 0; j < keys; ++j) dp[j] = (scale * p[j]) * (dp[j] - centre);
  std::fill(dp + keys, dp + end, 0.0f);
}

/// The same from scores: scores -> p = e^(scale * score - log_sum_exp), and dp -> ds = scale * p * (dp -
/// centre), over a row's keys; zeros elsewhere up to `end`, where the row may hold anything.
void scores_backward_row(float* scores, float* dp, const KeysOfRow& of_row, std::int64_t end, float scale,
                         float log_sum_exp, float centre) {
  const std::int64_t keys = of_row.end, vectors = padded(keys);
  std::fill(scores, scores + of_row.first, -std::numeric_limits<float>::infinity());
#pragma GCC ivdep
  for (std::int64_t j = 0; j < vectors; ++j) {
    const float p = exponential(std::fma(scores[j], scale, -log_sum_exp));
    scores[j] = p;
    dp[j] = (scale * p) * (dp[j] - centre);
  }
  std::fill(scores + keys, scores + std::max(vectors, end), 0.0f);
  std::fill(dp + keys, dp + std::max(vectors, end), 0.0f);
}

template <class E>
std::int64_t backward_floats(const ops::AttentionSizes& sizes) {
  const std::int64_t strips = keeps_probabilities(sizes.keys) ? 1 : 2;
  return 3 * scratch_floats<E>(sizes) + copied_floats(sizes, sizes.keys) +
         2 * copied_floats(sizes, strip_rows) + strips * (transposed_floats(sizes) + strip_floats(sizes));
}

/// A query head and its gradients.
template <class E>
struct QueryHead {
  Head<E> q, y, dy, dq;
  const float* saved;
  const std::int64_t* positions;
  BiasOfHead bias;
  float* dbias;  ///< [queries, keys], or null
};

template <class E>
struct KeyHead {
  Head<E> k, v, dk, dv;
};

/// query_head(i): query head i of those that read the key head; number `group` reads the next key head.
template <class E, class QueryHeads>
void backward_head(const ops::AttentionSizes& sizes, const KeyHead<E>& head, const KeyHead<E>& next,
                   const QueryHeads& query_head, Workspace work) {
  const std::int64_t width = sizes.width, group = sizes.group(), stride = row_stride(sizes.keys);
  const float scale = scale_of(sizes);
  const bool keeps = keeps_probabilities(sizes.keys);
  float* const scratch = work.take(scratch_floats<E>(sizes));  // used for one matrix at a time
  const Matrix values_transposed = transposed(head.v, sizes, scratch, work.take(transposed_floats(sizes))),
               keys_copied =
                   copied(head.k, 0, sizes.keys, width, work.take(copied_floats(sizes, sizes.keys)));
  float* const queries_scratch = work.take(copied_floats(sizes, strip_rows));
  float* const upstream_scratch = work.take(copied_floats(sizes, strip_rows));
  float* const ds = work.take(strip_floats(sizes));
  float* const scores = keeps ? nullptr : work.take(strip_floats(sizes));
  const Matrix keys_transposed =
      keeps ? Matrix{} : transposed(head.k, sizes, scratch, work.take(transposed_floats(sizes)));
  const OutputRows dk = output_rows(head.dk, 0, width, work.take(scratch_floats<E>(sizes))),
                   dv = output_rows(head.dv, 0, width, work.take(scratch_floats<E>(sizes)));
  const std::int64_t last = (sizes.queries - 1) / strip_rows * strip_rows;
  for (std::int64_t member = 0; member < group; ++member) {
    const QueryHead<E> from = query_head(member), later = query_head(member + 1);
    // From the last strip to the first: the last one needs every key, so it overwrites dk and dv, and the
    // others add.
    for (std::int64_t begin = last; begin >= 0; begin -= strip_rows) {
      const std::int64_t end = strip_end(sizes, begin), rows = end - begin, keys = keys_up_to(sizes, end);
      const float beta = member == 0 && begin == last ? 0.0f : 1.0f;
      const Matrix queries = copied(from.q, begin, end, width, queries_scratch),
                   upstream = copied(from.dy, begin, end, width, upstream_scratch),
                   y = readable(from.y, begin, end, width, scratch);
      for (const Head<E>& part : {later.q, later.y, later.dy}) prefetch(part, begin, end, width);
      if (member + 1 == group) {
        for (const Head<E>& part : {next.k, next.v}) prefetch(part, begin, std::min(end, sizes.keys), width);
      }
      const Matrix p = keeps ? Matrix{from.saved + begin * sizes.keys, sizes.keys} : Matrix{scores, stride};
      if (!keeps) multiply(rows, keys, width, queries, keys_transposed, 0.0f, scores, stride);
      if (!keeps) add_bias(sizes, from.bias, begin, rows, keys, scores, stride);
      multiply(rows, keys, width, upstream, values_transposed, 0.0f, ds, stride);
      for (std::int64_t r = 0; r < rows; ++r) {
        // The sum of p dp over the keys equals the sum of y dy over the head's width.
        const float centre = dot(y.data + r * y.stride, upstream.data + r * upstream.stride, width);
        float* const ds_row = ds + r * stride;
        const KeysOfRow of_row = keys_of_row(sizes, from.positions, begin + r);
        if (keeps)  // the probabilities of other documents are zeros
          softmax_backward_row(p.data + r * sizes.keys, ds_row, of_row.end, keys, scale, centre);
        else
          scores_backward_row(scores + r * stride, ds_row, of_row, keys, scale, from.saved[begin + r],
                              centre);
        if (!from.dbias) continue;
        float* const dbias = from.dbias + (begin + r) * sizes.keys;
        for (std::int64_t j = 0; j < keys; ++j) dbias[j] = ds_row[j] / scale;
        std::fill(dbias + keys, dbias + sizes.keys, 0.0f);
      }
      multiply(keys, width, rows, {p.data, p.stride, true}, upstream, beta, dv.data, dv.stride);
      const OutputRows dq = output_rows(from.dq, begin, width, scratch);
      multiply(rows, width, keys, {ds, stride}, keys_copied, 0.0f, dq.data, dq.stride);
      store_rows(dq, from.dq, begin, end, width);
      multiply(keys, width, rows, {ds, stride, true}, queries, beta, dk.data, dk.stride);
    }
  }
  store_rows(dk, head.dk, 0, sizes.keys, width);
  store_rows(dv, head.dv, 0, sizes.keys, width);
}

/// Calls body(head, the thread's next head, the thread's part of `work`) for all heads. All parts are
/// allocated in advance, so that their number does not depend on the order of threads.
template <class Body>
void for_each_head(int threads, std::int64_t items, std::int64_t team, const Tensor& work, const Body& body) {
  omp_set_num_threads(1);  // gemm.h
  parallel_items(threads, team, 1, [&](std::int64_t thread) {
    float* const part = work.data<float>() + thread * (work.numel() / team);
    for (std::int64_t item = items * thread / team; item < items * (thread + 1) / team; ++item)
      body(item, std::min(item + 1, items - 1), Workspace{part});
  });
}

void require_saved(const CpuBackend& cpu, const char* operation, const Tensor& saved,
                   const ops::AttentionSizes& sizes) {
  ops::require_shape(
      operation, "saved", saved,
      cpu.attention_saved_shape(sizes.batch, static_cast<int>(sizes.heads), sizes.queries, sizes.keys));
}

}  // namespace

Shape CpuBackend::attention_saved_shape(std::int64_t batch, int heads, std::int64_t queries,
                                        std::int64_t keys) const {
  return keeps_probabilities(keys) ? Shape{batch, heads, queries, keys} : Shape{batch, heads, queries};
}

void attention(CpuBackend& cpu, const ops::Attention& op) {
  const ops::AttentionSizes sizes = op.sizes();
  if (op.saved) require_saved(cpu, op.name, op.saved, sizes);
  float* const kept = op.saved ? op.saved.data<float>() : nullptr;
  const std::int64_t items = sizes.batch * sizes.heads, team = std::min<std::int64_t>(cpu.threads(), items),
                     kept_of_head = kept ? op.saved.numel() / std::max<std::int64_t>(1, items) : 0;
  by_type_of(op.y, [&]<class E>(E) {
    const auto view = [&](const ops::Columns& columns) { return heads_of<E>(columns, sizes); };
    const HeadView<E> queries = view(op.q), keys = view(op.k), values = view(op.v),
                      results = view(ops::all_columns(op.y));
    if (op.y.numel() == 0) return;
    const auto head_at = [&](std::int64_t item) -> ForwardHead<E> {
      const std::int64_t key_item = item / sizes.group();
      return {queries.at(item, sizes.heads),        keys.at(key_item, sizes.key_heads),
              values.at(key_item, sizes.key_heads), results.at(item, sizes.heads),
              kept + item * kept_of_head,           positions_of(op.positions, sizes, item / sizes.heads),
              bias_of(op.bias, sizes, item)};
    };
    const std::int64_t floats = kept ? forward_floats<E>(sizes) : padded(sizes.keys) + padded(sizes.width);
    for_each_head(cpu.threads(), items, team, cpu.scratch(team * floats),
                  [&](std::int64_t item, std::int64_t next, const Workspace& work) {
                    if (kept)
                      forward_head(sizes, head_at(item), head_at(next), work);
                    else
                      attend_by_row(sizes, head_at(item), work);
                  });
  });
}

void attention_backward(CpuBackend& cpu, const ops::AttentionBackward& op) {
  const ops::AttentionSizes sizes = op.sizes();
  require_saved(cpu, op.name, op.saved, sizes);
  const float* const kept = op.saved.data<float>();
  const std::int64_t items = sizes.batch * sizes.key_heads, group = sizes.group(),
                     team = std::min<std::int64_t>(cpu.threads(), items),
                     kept_of_head = op.saved.numel() / std::max<std::int64_t>(1, items * group);
  by_type_of(op.dy, [&]<class E>(E) {
    const auto view = [&](const ops::Columns& columns) { return heads_of<E>(columns, sizes); };
    const HeadView<E> upstream = view(ops::all_columns(op.dy)), results = view(ops::all_columns(op.y)),
                      queries = view(op.q), keys = view(op.k), values = view(op.v),
                      query_gradients = view(op.dq), key_gradients = view(op.dk),
                      value_gradients = view(op.dv);
    if (op.dy.numel() == 0) return;
    const auto query_head_at = [&](std::int64_t item) -> QueryHead<E> {
      const auto of = [&](const HeadView<E>& heads_in) { return heads_in.at(item, sizes.heads); };
      return {of(queries),
              of(results),
              of(upstream),
              of(query_gradients),
              kept + item * kept_of_head,
              positions_of(op.positions, sizes, item / sizes.heads),
              bias_of(op.bias, sizes, item),
              op.dbias ? op.dbias.data<float>() + item * sizes.queries * sizes.keys : nullptr};
    };
    const auto key_head_at = [&](std::int64_t item) -> KeyHead<E> {
      const auto of = [&](const HeadView<E>& heads_in) { return heads_in.at(item, sizes.key_heads); };
      return {of(keys), of(values), of(key_gradients), of(value_gradients)};
    };
    for_each_head(cpu.threads(), items, team, cpu.scratch(team * backward_floats<E>(sizes)),
                  [&](std::int64_t item, std::int64_t next, const Workspace& work) {
                    const auto query_head = [&](std::int64_t member) {
                      return query_head_at(std::min(item * group + member, items * group - 1));
                    };
                    backward_head(sizes, key_head_at(item), key_head_at(next), query_head, work);
                  });
  });
}

namespace {

constexpr std::int64_t rotated_per_thread = 8192;

/// Pair i is (x[i * step], x[i * step + distance]).
template <std::int64_t step, class E>
void rotate_row(const E* x, std::int64_t distance, std::int64_t pairs, const float* cosines,
                const float* sines, E* y) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < pairs; ++i) {
    const float a = to_float(x[i * step]), b = to_float(x[i * step + distance]);
    store(y[i * step], a * cosines[i] - b * sines[i]);
    store(y[i * step + distance], b * cosines[i] + a * sines[i]);
  }
}

}  // namespace

void rotary(CpuBackend& cpu, const ops::Rotary& op) {
  const std::int64_t heads = op.heads(), time = op.time(), width = op.x.size(3), pairs = width / 2;
  if (op.x.numel() == 0) return;
  const std::int64_t* const positions = op.positions ? op.positions.data<std::int64_t>() : nullptr;
  const std::int64_t angles = positions ? op.positions.numel() : time;  // of one pair
  const Tensor table = cpu.scratch(2 * angles * pairs);
  float *const cosines = table.data<float>(), *const sines = cosines + angles * pairs;
  constexpr std::int64_t angles_per_thread = 512;
  parallel_items(cpu.threads(), pairs, angles_per_thread / angles,
                 [=, log2_base = std::log2(static_cast<double>(op.base)), &scaling = op.scaling,
                  first = op.first_position, back = op.back](std::int64_t i) {
                   const double turns = ops::turns_per_position(log2_base, scaling, i, width);
                   for (std::int64_t t = 0; t < angles; ++t) {
                     const std::int64_t position = positions ? positions[t] : first + t;
                     const ops::Rotation rotation = ops::rotation_by(static_cast<double>(position) * turns);
                     cosines[t * pairs + i] = rotation.cosine;
                     sines[t * pairs + i] = back ? -rotation.sine : rotation.sine;
                   }
                 });
  by_type_of(op.x, [&]<class E>(E) {
    const E* const x = op.x.data<E>();
    E* const y = op.y.data<E>();
    parallel_items(
        cpu.threads(), op.x.numel() / width, rotated_per_thread / width,
        [=, halves = op.layout == ops::RotaryLayout::halves, time_first = op.time_first](std::int64_t row) {
          const std::int64_t t = time_first ? row / heads % time : row % time,
                             of_image = positions ? row / (heads * time) * time : 0, at = row * width,
                             angle = (of_image + t) * pairs;
          if (halves)
            rotate_row<1>(x + at, pairs, pairs, cosines + angle, sines + angle, y + at);
          else
            rotate_row<2>(x + at, 1, pairs, cosines + angle, sines + angle, y + at);
        });
  });
}

void enter_attention(CpuBackend& cpu) {
  cpu.enter<&attention, &attention_backward>();
  cpu.enter<&rotary>();
}

}  // namespace lockstep::kernels
