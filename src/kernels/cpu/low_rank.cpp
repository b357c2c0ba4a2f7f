// The linear algebra of low-rank compression beside plain products, whose bits are the same on every
// processor: so none of it is a library's.
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/low_rank.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t lanes = 8;  // of sums: vectorised, and in a fixed order

double dot(const double* a, const double* b, std::int64_t length) {
  std::array<double, lanes> sums{};
  std::int64_t i = 0;
  for (; i + lanes <= length; i += lanes) {
    for (std::int64_t lane = 0; lane < lanes; ++lane)
      sums[static_cast<std::size_t>(lane)] =
          std::fma(a[i + lane], b[i + lane], sums[static_cast<std::size_t>(lane)]);
  }
  double rest = 0;
  for (; i < length; ++i) rest = std::fma(a[i], b[i], rest);
  for (std::size_t half = lanes / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0] + rest;
}

void subtract(double* from, double factor, const double* vector, std::int64_t length) {
  for (std::int64_t i = 0; i < length; ++i) from[i] = std::fma(-factor, vector[i], from[i]);
}

/// Makes `vector` orthogonal to the `count` before it, and of length 1. False if nothing is left of it but
/// rounding errors of its float32 elements: then it is zero.
bool orthonormalise_last(double* first, std::int64_t count, double* vector, std::int64_t length) {
  constexpr double vanishing = 1e-7;  // float32 has 6e-8
  const double before = std::sqrt(dot(vector, vector, length));
  double norm = before;
  for (int pass = 0; pass < 2; ++pass) {
    const double at_start = norm;
    for (std::int64_t v = 0; v < count; ++v) {
      const double* const other = first + v * length;
      subtract(vector, dot(other, vector, length), other, length);
    }
    norm = std::sqrt(dot(vector, vector, length));
    if (norm > 0.5 * at_start) break;  // little was lost to cancellation: once is enough
  }
  const bool left = norm > vanishing * before;
  const double factor = left ? 1 / norm : 0;
  for (std::int64_t i = 0; i < length; ++i) vector[i] *= factor;
  return left;
}

/// `count` vectors of `length` elements; element i of vector v lies at v * vector_stride + i *
/// element_stride.
struct Vectors {
  std::int64_t count = 0, length = 0, vector_stride = 0, element_stride = 1;
};

Vectors vectors_of(const Tensor& matrix, Orthonormal::Vectors which) {
  const std::int64_t rows = matrix.size(0), columns = matrix.size(1);
  if (which == Orthonormal::Vectors::rows)
    return {.count = rows, .length = columns, .vector_stride = columns, .element_stride = 1};
  return {.count = columns, .length = rows, .vector_stride = 1, .element_stride = columns};
}

struct Outcome {
  bool finite = true;    ///< otherwise nothing was written
  bool complete = true;  ///< otherwise some vectors were combinations of those before, and are zero now
};

/// work: count * length numbers.
Outcome orthonormalise_vectors(const float* x, const Vectors& v, double* work, float* y) {
  Outcome outcome;
  for (std::int64_t k = 0; k < v.count; ++k) {
    double* const vector = work + k * v.length;
    for (std::int64_t i = 0; i < v.length; ++i) vector[i] = x[k * v.vector_stride + i * v.element_stride];
    outcome.finite = outcome.finite && std::isfinite(dot(vector, vector, v.length));
  }
  if (!outcome.finite) return outcome;
  for (std::int64_t k = 0; k < v.count; ++k) {
    const bool left = orthonormalise_last(work, k, work + k * v.length, v.length);
    outcome.complete = outcome.complete && left;
  }
  for (std::int64_t k = 0; k < v.count; ++k) {
    for (std::int64_t i = 0; i < v.length; ++i)
      y[k * v.vector_stride + i * v.element_stride] = static_cast<float>(work[k * v.length + i]);
  }
  return outcome;
}

void draw(const RandomKey& key, std::int64_t count, float* to) {
  const Random random(key);
  for (std::int64_t i = 0; i < count; ++i) to[i] = random.normal(static_cast<std::uint64_t>(i));
}

void draw_row(RandomKey key, std::int64_t row, std::int64_t length, float* to) {
  key.shard = static_cast<std::uint32_t>(row);
  draw(key, length, to);
}

/// S and the rest of it, as plain memory.
struct Expansion {
  std::int64_t m = 0, rank = 0;
  const float* p = nullptr;
  const float* q = nullptr;
  float share = 0;
  float* matrix = nullptr;
  float* rest = nullptr;
};

/// Columns [first, first + width) of row i; `width` sums fit into the first cache.
void expand_strip(const Expansion& e, std::int64_t i, std::int64_t first, std::int64_t width, float* sums) {
  const float* const p = e.p + i * e.rank;
  const float* const q = e.q + first;
  for (std::int64_t j = 0; j < width; ++j) sums[j] = p[0] * q[j];
  for (std::int64_t k = 1; k < e.rank; ++k) {
    const float factor = p[k];
    const float* const row = q + k * e.m;
    for (std::int64_t j = 0; j < width; ++j) sums[j] = std::fma(factor, row[j], sums[j]);
  }
  float* const matrix = e.matrix + i * e.m + first;
  if (e.rest) {
    float* const rest = e.rest + i * e.m + first;
    for (std::int64_t j = 0; j < width; ++j) rest[j] = std::fma(-e.share, sums[j], matrix[j]);
  }
  std::copy_n(sums, width, matrix);
}

void expand_rows(const Expansion& e, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t strip = 1024, rows_together = 8;  // so often a strip of Q is used at once
  std::array<float, strip> sums;
  for (std::int64_t block = begin; block < end; block += rows_together) {
    for (std::int64_t first = 0; first < e.m; first += strip) {
      const std::int64_t width = std::min(strip, e.m - first);
      for (std::int64_t i = block; i < std::min(end, block + rows_together); ++i)
        expand_strip(e, i, first, width, sums.data());
    }
  }
}

bool finite(const float* x, std::int64_t count) {
  return std::all_of(x, x + count, [](float value) { return std::isfinite(value); });
}

}  // namespace

void CpuBackend::draw_normal(const RandomKey& key, const Tensor& out) {
  float* const to = plain_floats("draw_normal", "the numbers", out);
  draw(key, out.numel(), to);
}

void CpuBackend::orthonormalise(const Tensor& x, const Orthonormal& how, const Tensor& y) {
  constexpr const char* operation = "orthonormalise";
  require_matrix(operation, "x", x);
  require_shape(operation, "y", y, x.shape());
  const float* const from = plain_floats(operation, "x", x);
  float* const to = plain_floats(operation, "y", y);
  if (how.condition && *floats(operation, "the condition", how.condition) == 0) return;
  const Vectors vectors = vectors_of(x, how.vectors);
  const Tensor work = scratch(x.numel(), DType::float64);
  const Outcome outcome = orthonormalise_vectors(from, vectors, work.data<double>(), to);
  if (!outcome.finite || outcome.complete || !how.draw) return;
  for (std::int64_t row = 0; row < vectors.count; ++row) {
    float* const values = to + row * vectors.length;
    if (std::all_of(values, values + vectors.length, [](float value) { return value == 0; }))
      draw_row(*how.draw, row, vectors.length, values);
  }
  orthonormalise_vectors(to, vectors, work.data<double>(), to);
}

void CpuBackend::expand(const LowRank& factors) {
  constexpr const char* operation = "expand";
  constexpr std::int64_t elements_per_thread = 1 << 15;
  const auto [n, m, rank] = require_factors(operation, factors);
  const float failed = *floats(operation, "failed", factors.failed);
  float& valid = *floats(operation, "valid", factors.valid);
  Expansion expansion{.m = m,
                      .rank = rank,
                      .p = plain_floats(operation, "p", factors.p),
                      .q = plain_floats(operation, "q", factors.q),
                      .share = factors.share,
                      .matrix = plain_floats(operation, "the matrix", factors.matrix)};
  const bool is_valid = failed == 0 && finite(expansion.p, n * rank) && finite(expansion.q, rank * m);
  valid = is_valid ? 1 : 0;
  if (factors.rest && is_valid) expansion.rest = plain_floats(operation, "the rest", factors.rest);
  parallel_ranges(threads_, n, elements_per_thread / std::max<std::int64_t>(1, m) + 1,
                  [&](std::int64_t begin, std::int64_t end) { expand_rows(expansion, begin, end); });
}

}  // namespace lockstep::kernels
