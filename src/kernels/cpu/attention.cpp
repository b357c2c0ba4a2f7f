// Scaled dot-product attention (Vaswani et al., 2017), head by head on columns of the projections' matrices.
//
// Rows of time are taken in strips. With a causal mask the strip [begin, end) meets only the keys [0, end),
// so about half of all products are never made. Threads share the heads.
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/problems.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t strip_rows = 48;

std::int64_t strip_end(const AttentionSizes& sizes, std::int64_t begin) {
  return std::min(sizes.time, begin + strip_rows);
}

/// Keys that rows up to `end` look at.
std::int64_t keys_up_to(const AttentionSizes& sizes, std::int64_t end) {
  return sizes.causal ? end : sizes.time;
}

/// One head's [time, width] part of a matrix [batch, time, stride].
struct Head {
  float* data;
  std::int64_t stride;

  Matrix from_row(std::int64_t row) const { return {data + row * stride, stride}; }
  Matrix transposed() const { return {data, stride, true}; }
};

struct HeadView {
  float* data;
  std::int64_t stride, time, width;

  Head at(std::int64_t image, std::int64_t head) const {
    return {data + image * time * stride + head * width, stride};
  }
};

HeadView heads_of(const char* operation, const char* name, const Columns& columns,
                  const AttentionSizes& sizes) {
  float* data = plain_floats(operation, name, columns.matrix);
  require_heads(operation, name, columns, sizes);
  return {data + columns.first, columns.matrix.size(2), sizes.time, sizes.width};
}

/// Softmax of scale * scores over the first `keys` of a row of `time`; zeros behind.
void softmax_row(float* row, std::int64_t keys, std::int64_t time, float scale) {
  const float shift = -scale * largest(row, keys);  // scale > 0
#pragma GCC ivdep
  for (std::int64_t j = 0; j < keys; ++j) row[j] = exponential(std::fma(row[j], scale, shift));
  const float factor = 1.0f / sum(row, keys);
#pragma GCC ivdep
  for (std::int64_t j = 0; j < keys; ++j) row[j] *= factor;
  std::fill(row + keys, row + time, 0.0f);
}

void forward_head(const AttentionSizes& sizes, const Head& q, const Head& k, const Head& v, const Head& y,
                  float* p) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(sizes.width));
  for (std::int64_t begin = 0; begin < sizes.time; begin += strip_rows) {
    const std::int64_t end = strip_end(sizes, begin), rows = end - begin, keys = keys_up_to(sizes, end);
    float* strip = p + begin * sizes.time;
    multiply(rows, keys, sizes.width, q.from_row(begin), k.transposed(), 0.0f, strip, sizes.time);
    for (std::int64_t r = 0; r < rows; ++r) {
      softmax_row(strip + r * sizes.time, keys_up_to(sizes, begin + r + 1), sizes.time, scale);
    }
    multiply(rows, sizes.width, keys, {strip, sizes.time}, v.from_row(0), 0.0f, y.data + begin * y.stride,
             y.stride);
  }
}

/// ds = scale * p * (dp - sum(p dp)), over the row's keys; zeros behind up to `padded`.
void softmax_backward_row(const float* p, float* dp, std::int64_t keys, std::int64_t padded, float scale) {
  const float centre = dot(p, dp, keys);
#pragma GCC ivdep
  for (std::int64_t j = 0; j < keys; ++j) dp[j] = (scale * p[j]) * (dp[j] - centre);
  std::fill(dp + keys, dp + padded, 0.0f);
}

struct HeadGradients {
  Head dq, dk, dv;
};

/// `work`: strip_rows * time floats.
void backward_head(const AttentionSizes& sizes, const Head& dy, const Head& q, const Head& k, const Head& v,
                   const float* p, const HeadGradients& gradients, float* work) {
  const auto [dq, dk, dv] = gradients;
  const std::int64_t time = sizes.time, width = sizes.width;
  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
  // From the last strip to the first: it meets every key, so it overwrites dk and dv and the others add.
  const std::int64_t last = (time - 1) / strip_rows * strip_rows;
  for (std::int64_t begin = last; begin >= 0; begin -= strip_rows) {
    const std::int64_t end = strip_end(sizes, begin), rows = end - begin, keys = keys_up_to(sizes, end);
    const float* strip = p + begin * time;
    const float beta = begin == last ? 0.0f : 1.0f;
    multiply(keys, width, rows, {strip, time, true}, dy.from_row(begin), beta, dv.data, dv.stride);
    multiply(rows, keys, width, dy.from_row(begin), v.transposed(), 0.0f, work, keys);
    for (std::int64_t r = 0; r < rows; ++r) {
      softmax_backward_row(strip + r * time, work + r * keys, keys_up_to(sizes, begin + r + 1), keys, scale);
    }
    multiply(rows, width, keys, {work, keys}, k.from_row(0), 0.0f, dq.data + begin * dq.stride, dq.stride);
    multiply(keys, width, rows, {work, keys, true}, q.from_row(begin), beta, dk.data, dk.stride);
  }
}

}  // namespace

void CpuBackend::attention(const Columns& q, const Columns& k, const Columns& v, int heads, bool causal,
                           const Tensor& y, const Tensor& saved) {
  constexpr const char* operation = "attention";
  const AttentionSizes sizes = attention_sizes(operation, y, heads, causal, saved, *this);
  const HeadView queries = heads_of(operation, "q", q, sizes), keys = heads_of(operation, "k", k, sizes),
                 values = heads_of(operation, "v", v, sizes),
                 results = heads_of(operation, "y", {y, 0, y.size(2)}, sizes);
  float* probabilities = plain_floats(operation, "saved", saved);
  omp_set_num_threads(1);
  parallel_items(threads_, sizes.batch * heads, 1, [&](std::int64_t item) {
    const std::int64_t image = item / heads, head = item % heads;
    forward_head(sizes, queries.at(image, head), keys.at(image, head), values.at(image, head),
                 results.at(image, head), probabilities + item * sizes.time * sizes.time);
  });
}

void CpuBackend::attention_backward(const Tensor& dy, const Columns& q, const Columns& k, const Columns& v,
                                    int heads, bool causal, const Tensor& y, const Tensor& saved,
                                    const Columns& dq, const Columns& dk, const Columns& dv) {
  constexpr const char* operation = "attention_backward";
  require_shape(operation, "y", y, dy.shape());
  const AttentionSizes sizes = attention_sizes(operation, dy, heads, causal, saved, *this);
  const HeadView upstream = heads_of(operation, "dy", {dy, 0, dy.size(2)}, sizes),
                 queries = heads_of(operation, "q", q, sizes), keys = heads_of(operation, "k", k, sizes),
                 values = heads_of(operation, "v", v, sizes),
                 query_gradients = heads_of(operation, "dq", dq, sizes),
                 key_gradients = heads_of(operation, "dk", dk, sizes),
                 value_gradients = heads_of(operation, "dv", dv, sizes);
  const float* probabilities = plain_floats(operation, "saved", saved);
  omp_set_num_threads(1);
  // Every thread's strip is taken here, so how many there are does not depend on when threads run.
  const std::int64_t items = sizes.batch * heads, team = std::min<std::int64_t>(threads_, items),
                     strip = strip_rows * sizes.time;
  const Tensor work = scratch(team * strip);
  parallel_items(threads_, team, 1, [&](std::int64_t thread) {
    for (std::int64_t item = items * thread / team; item < items * (thread + 1) / team; ++item) {
      const std::int64_t image = item / heads, head = item % heads;
      backward_head(
          sizes, upstream.at(image, head), queries.at(image, head), keys.at(image, head),
          values.at(image, head), probabilities + item * sizes.time * sizes.time,
          {query_gradients.at(image, head), key_gradients.at(image, head), value_gradients.at(image, head)},
          work.data<float>() + thread * strip);
    }
  });
}

}  // namespace lockstep::kernels
