// Scaled dot-product attention (Vaswani et al., 2017), head by head on columns of the projections' matrices.
//
// Rows of time are taken in strips. With a causal mask the strip [begin, end) meets only the keys [0, end),
// so about half of all products are never made. Threads share the heads.
//
// Forward keeps the probabilities for backward where rows are short. Where they are long, that memory costs
// more time than a product: forward leaves the logarithms of the rows' sums of exponentials, and backward
// makes each strip's probabilities again from them (Dao et al., "FlashAttention", 2022).
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/cpu/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/problems.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t strip_rows = 48;  // a multiple of the products' groups of rows (gemm.h)
constexpr std::int64_t most_kept_keys = 512;
constexpr std::int64_t lanes = sizeof(Floats) / sizeof(float);

std::int64_t padded(std::int64_t count) { return round_up(count, lanes); }

/// Floats between the starts of rows of `count`: whole vectors (gemm.h).
std::int64_t row_stride(std::int64_t count) { return spread_stride(padded(count)); }

std::int64_t strip_end(const AttentionSizes& sizes, std::int64_t begin) {
  return std::min(sizes.time, begin + strip_rows);
}

bool keeps_probabilities(std::int64_t time) { return time <= most_kept_keys; }

/// Keys that rows up to `end` look at.
std::int64_t keys_up_to(const AttentionSizes& sizes, std::int64_t end) {
  return sizes.causal ? end : sizes.time;
}

float scale_of(const AttentionSizes& sizes) { return 1.0f / std::sqrt(static_cast<float>(sizes.width)); }

/// One head's [time, width] part of a matrix [batch, time, stride].
struct Head {
  float* data;
  std::int64_t stride;

  float* row(std::int64_t index) const { return data + index * stride; }
  Matrix from_row(std::int64_t index) const { return {row(index), stride}; }
};

struct HeadView {
  float* data;
  std::int64_t stride, time, width;

  Head at(std::int64_t item, std::int64_t heads) const {
    return {data + item / heads * time * stride + item % heads * width, stride};
  }
};

HeadView heads_of(const char* operation, const char* name, const Columns& columns,
                  const AttentionSizes& sizes) {
  float* data = plain_floats(operation, name, columns.matrix);
  require_heads(operation, name, columns, sizes);
  return {data + columns.first, columns.matrix.size(2), sizes.time, sizes.width};
}

// Projections' rows often start a multiple of 1 KiB apart, where a cache holds few of them: products read
// copies.

/// rows [begin, end) of a head side by side.
Matrix copied(const Head& head, std::int64_t begin, std::int64_t end, std::int64_t width, float* to) {
  const std::int64_t stride = row_stride(width);
  for (std::int64_t t = begin; t < end; ++t) std::copy_n(head.row(t), width, to + (t - begin) * stride);
  return {to, stride};
}

/// Asks for rows [begin, end) of the head that comes next: a head's rows are too short for the processor to
/// guess.
void prefetch(const Head& head, std::int64_t begin, std::int64_t end, std::int64_t width) {
  constexpr std::int64_t line = 64 / sizeof(float);
  for (std::int64_t t = begin; t < end; ++t) {
    for (std::int64_t d = 0; d < width; d += line) __builtin_prefetch(head.row(t) + d);
  }
}

/// A whole head as [width, time].
Matrix turned(const Head& head, const AttentionSizes& sizes, float* to) {
  const std::int64_t stride = row_stride(sizes.time);
  transpose(head.data, head.stride, sizes.time, sizes.width, to, stride);
  return {to, stride};
}

/// The floats of such copies, and of a strip's [rows, keys].
std::int64_t copied_floats(const AttentionSizes& sizes, std::int64_t rows) {
  return padded(rows * row_stride(sizes.width));
}
std::int64_t turned_floats(const AttentionSizes& sizes) { return sizes.width * row_stride(sizes.time); }
std::int64_t strip_floats(const AttentionSizes& sizes) { return strip_rows * row_stride(sizes.time); }

/// Hands out parts of one block of working memory.
struct Parts {
  float* next;

  float* take(std::int64_t count) { return std::exchange(next, next + count); }
};

/// The scores of a row's first `keys` become e^(scale * score - scale * the largest), zeros behind up to
/// `end`. What lies behind the keys may be anything. Returns the logarithm of the sum of e^(scale * score).
float exponentials_of_row(float* row, std::int64_t keys, std::int64_t end, float scale, float& sum_of_row) {
  const float most = scale * largest(row, keys);  // scale > 0
  const std::int64_t vectors = padded(keys);
#pragma GCC ivdep
  for (std::int64_t j = 0; j < vectors; ++j) row[j] = exponential(std::fma(row[j], scale, -most));
  std::fill(row + keys, row + std::max(vectors, end), 0.0f);
  sum_of_row = sum(row, vectors);
  return most + std::log(sum_of_row);
}

std::int64_t forward_floats(const AttentionSizes& sizes) {
  return turned_floats(sizes) + copied_floats(sizes, sizes.time) + strip_floats(sizes);
}

struct ForwardHead {
  Head q, k, v, y;
  float* saved;  ///< [time, time] probabilities, or [time] logarithms
};

void forward_head(const AttentionSizes& sizes, const ForwardHead& head, const ForwardHead& next, Parts work) {
  const float scale = scale_of(sizes);
  const Matrix keys_turned = turned(head.k, sizes, work.take(turned_floats(sizes))),
               values =
                   copied(head.v, 0, sizes.time, sizes.width, work.take(copied_floats(sizes, sizes.time)));
  float* const strip = work.take(strip_floats(sizes));
  const std::int64_t stride = row_stride(sizes.time);
  const bool keeps = keeps_probabilities(sizes.time);
  for (std::int64_t begin = 0; begin < sizes.time; begin += strip_rows) {
    const std::int64_t end = strip_end(sizes, begin), rows = end - begin, keys = keys_up_to(sizes, end);
    for (const Head& part : {next.q, next.k, next.v}) prefetch(part, begin, end, sizes.width);
    multiply(rows, keys, sizes.width, head.q.from_row(begin), keys_turned, 0.0f, strip, stride);
    float sums[strip_rows];
    for (std::int64_t r = 0; r < rows; ++r) {
      const float log_sum_exp =
          exponentials_of_row(strip + r * stride, keys_up_to(sizes, begin + r + 1), keys, scale, sums[r]);
      if (!keeps) head.saved[begin + r] = log_sum_exp;
    }
    multiply(rows, sizes.width, keys, {strip, stride}, values, 0.0f, head.y.row(begin), head.y.stride);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* const y = head.y.row(begin + r);
      const float factor = 1.0f / sums[r];
#pragma GCC ivdep
      for (std::int64_t d = 0; d < sizes.width; ++d) y[d] *= factor;
      if (!keeps) continue;
      const float* const row = strip + r * stride;
      float* const probabilities = head.saved + (begin + r) * sizes.time;
#pragma GCC ivdep
      for (std::int64_t j = 0; j < keys; ++j) probabilities[j] = factor * row[j];
    }
  }
}

/// dp -> ds = scale * p * (dp - centre) over a row's first `keys`; zeros behind up to `end`.
void softmax_backward_row(const float* p, float* dp, std::int64_t keys, std::int64_t end, float scale,
                          float centre) {
#pragma GCC ivdep
  for (std::int64_t j = 0; j < keys; ++j) dp[j] = (scale * p[j]) * (dp[j] - centre);
  std::fill(dp + keys, dp + end, 0.0f);
}

/// The same from scores: scores -> p = e^(scale * score - log_sum_exp), and dp -> ds = scale * p * (dp -
/// centre), over a row's first `keys`; zeros behind up to `end`. What lies behind the keys may be anything.
void scores_backward_row(float* scores, float* dp, std::int64_t keys, std::int64_t end, float scale,
                         float log_sum_exp, float centre) {
  const std::int64_t vectors = padded(keys);
#pragma GCC ivdep
  for (std::int64_t j = 0; j < vectors; ++j) {
    const float p = exponential(std::fma(scores[j], scale, -log_sum_exp));
    scores[j] = p;
    dp[j] = (scale * p) * (dp[j] - centre);
  }
  std::fill(scores + keys, scores + std::max(vectors, end), 0.0f);
  std::fill(dp + keys, dp + std::max(vectors, end), 0.0f);
}

std::int64_t backward_floats(const AttentionSizes& sizes) {
  const std::int64_t strips = keeps_probabilities(sizes.time) ? 1 : 2;
  return copied_floats(sizes, sizes.time) + 2 * copied_floats(sizes, strip_rows) +
         strips * (turned_floats(sizes) + strip_floats(sizes));
}

struct BackwardHead {
  Head q, k, v, y, dy, dq, dk, dv;
  const float* saved;
};

void backward_head(const AttentionSizes& sizes, const BackwardHead& head, const BackwardHead& next,
                   Parts work) {
  const std::int64_t time = sizes.time, width = sizes.width, stride = row_stride(time);
  const float scale = scale_of(sizes);
  const bool keeps = keeps_probabilities(time);
  const Matrix values_turned = turned(head.v, sizes, work.take(turned_floats(sizes))),
               keys_copied = copied(head.k, 0, time, width, work.take(copied_floats(sizes, time)));
  float* const queries_room = work.take(copied_floats(sizes, strip_rows));
  float* const upstream_room = work.take(copied_floats(sizes, strip_rows));
  float* const ds = work.take(strip_floats(sizes));
  float* const scores = keeps ? nullptr : work.take(strip_floats(sizes));
  const Matrix keys_turned = keeps ? Matrix{} : turned(head.k, sizes, work.take(turned_floats(sizes)));
  // From the last strip to the first: it meets every key, so it overwrites dk and dv and the others add.
  const std::int64_t last = (time - 1) / strip_rows * strip_rows;
  for (std::int64_t begin = last; begin >= 0; begin -= strip_rows) {
    const std::int64_t end = strip_end(sizes, begin), rows = end - begin, keys = keys_up_to(sizes, end);
    const float beta = begin == last ? 0.0f : 1.0f;
    const Matrix queries = copied(head.q, begin, end, width, queries_room),
                 upstream = copied(head.dy, begin, end, width, upstream_room);
    for (const Head& part : {next.q, next.k, next.v, next.y, next.dy}) prefetch(part, begin, end, width);
    const Matrix p = keeps ? Matrix{head.saved + begin * time, time} : Matrix{scores, stride};
    if (!keeps) multiply(rows, keys, width, queries, keys_turned, 0.0f, scores, stride);
    multiply(rows, keys, width, upstream, values_turned, 0.0f, ds, stride);
    for (std::int64_t r = 0; r < rows; ++r) {
      // The sum of p dp over the keys is that of y dy over the head's width.
      const float centre = dot(head.y.row(begin + r), upstream.data + r * upstream.stride, width);
      float* const ds_row = ds + r * stride;
      const std::int64_t keys_of_row = keys_up_to(sizes, begin + r + 1);
      if (keeps)
        softmax_backward_row(p.data + r * time, ds_row, keys_of_row, keys, scale, centre);
      else
        scores_backward_row(scores + r * stride, ds_row, keys_of_row, keys, scale, head.saved[begin + r],
                            centre);
    }
    multiply(keys, width, rows, {p.data, p.stride, true}, upstream, beta, head.dv.data, head.dv.stride);
    multiply(rows, width, keys, {ds, stride}, keys_copied, 0.0f, head.dq.row(begin), head.dq.stride);
    multiply(keys, width, rows, {ds, stride, true}, queries, beta, head.dk.data, head.dk.stride);
  }
}

/// body(head's number, that of the thread's next one, the thread's part of `work`) for all heads. Every
/// thread's part is there from the start, so that how many there are does not depend on when threads run.
template <class Body>
void for_each_head(int threads, std::int64_t items, std::int64_t team, const Tensor& work, const Body& body) {
  omp_set_num_threads(1);  // gemm.h
  parallel_items(threads, team, 1, [&](std::int64_t thread) {
    float* const part = work.data<float>() + thread * (work.numel() / team);
    for (std::int64_t item = items * thread / team; item < items * (thread + 1) / team; ++item)
      body(item, std::min(item + 1, items - 1), Parts{part});
  });
}

}  // namespace

Shape CpuBackend::attention_saved_shape(std::int64_t batch, int heads, std::int64_t time) const {
  return keeps_probabilities(time) ? Shape{batch, heads, time, time} : Shape{batch, heads, time};
}

void CpuBackend::attention(const Columns& q, const Columns& k, const Columns& v, int heads, bool causal,
                           const Tensor& y, const Tensor& saved) {
  constexpr const char* operation = "attention";
  const AttentionSizes sizes = attention_sizes(operation, y, heads, causal, saved, *this);
  const HeadView queries = heads_of(operation, "q", q, sizes), keys = heads_of(operation, "k", k, sizes),
                 values = heads_of(operation, "v", v, sizes),
                 results = heads_of(operation, "y", {y, 0, y.size(2)}, sizes);
  float* const kept = plain_floats(operation, "saved", saved);
  const std::int64_t kept_of_head = saved.numel() / std::max<std::int64_t>(1, sizes.batch * heads);
  const std::int64_t items = sizes.batch * heads, team = std::min<std::int64_t>(threads_, items);
  if (y.numel() == 0) return;
  const auto head_at = [&](std::int64_t item) -> ForwardHead {
    return {queries.at(item, heads), keys.at(item, heads), values.at(item, heads), results.at(item, heads),
            kept + item * kept_of_head};
  };
  for_each_head(threads_, items, team, scratch(team * forward_floats(sizes)),
                [&](std::int64_t item, std::int64_t next, const Parts& work) {
                  forward_head(sizes, head_at(item), head_at(next), work);
                });
}

void CpuBackend::attention_backward(const Tensor& dy, const Columns& q, const Columns& k, const Columns& v,
                                    int heads, bool causal, const Tensor& y, const Tensor& saved,
                                    const Columns& dq, const Columns& dk, const Columns& dv) {
  constexpr const char* operation = "attention_backward";
  require_shape(operation, "y", y, dy.shape());
  const AttentionSizes sizes = attention_sizes(operation, dy, heads, causal, saved, *this);
  const HeadView upstream = heads_of(operation, "dy", {dy, 0, dy.size(2)}, sizes),
                 results = heads_of(operation, "y", {y, 0, y.size(2)}, sizes),
                 queries = heads_of(operation, "q", q, sizes), keys = heads_of(operation, "k", k, sizes),
                 values = heads_of(operation, "v", v, sizes),
                 query_gradients = heads_of(operation, "dq", dq, sizes),
                 key_gradients = heads_of(operation, "dk", dk, sizes),
                 value_gradients = heads_of(operation, "dv", dv, sizes);
  const float* const kept = plain_floats(operation, "saved", saved);
  const std::int64_t kept_of_head = saved.numel() / std::max<std::int64_t>(1, sizes.batch * heads);
  const std::int64_t items = sizes.batch * heads, team = std::min<std::int64_t>(threads_, items);
  if (dy.numel() == 0) return;
  const auto head_at = [&](std::int64_t item) -> BackwardHead {
    const auto of = [&](const HeadView& view) { return view.at(item, heads); };
    return {of(queries),
            of(keys),
            of(values),
            of(results),
            of(upstream),
            of(query_gradients),
            of(key_gradients),
            of(value_gradients),
            kept + item * kept_of_head};
  };
  for_each_head(threads_, items, team, scratch(team * backward_floats(sizes)),
                [&](std::int64_t item, std::int64_t next, const Parts& work) {
                  backward_head(sizes, head_at(item), head_at(next), work);
                });
}

}  // namespace lockstep::kernels
