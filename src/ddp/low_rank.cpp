#include "ddp/low_rank.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/base/processor.h"

namespace lockstep::ddp {
namespace {

constexpr std::int64_t lanes = 8;  // of sums: vectorised, and in a fixed order

double dot(const double* a, const double* b, std::int64_t length) {
  std::array<double, lanes> sums{};
  std::int64_t i = 0;
  for (; i + lanes <= length; i += lanes) {
    for (std::int64_t lane = 0; lane < lanes; ++lane)
      sums[static_cast<std::size_t>(lane)] += a[i + lane] * b[i + lane];
  }
  double rest = 0;
  for (; i < length; ++i) rest += a[i] * b[i];
  for (std::size_t half = lanes / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0] + rest;
}

void subtract(double* from, double factor, const double* vector, std::int64_t length) {
  for (std::int64_t i = 0; i < length; ++i) from[i] -= factor * vector[i];
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

/// Columns [first, first + width) of row i; `width` sums fit into the first cache.
void expand_strip(const Expansion& e, std::int64_t i, std::int64_t first, std::int64_t width, float* sums) {
  const float* const p = e.p + i * e.rank;
  const float* const q = e.q + first;
  for (std::int64_t j = 0; j < width; ++j) sums[j] = p[0] * q[j];
  for (std::int64_t k = 1; k < e.rank; ++k) {
    const float factor = p[k];
    const float* const row = q + k * e.m;
    for (std::int64_t j = 0; j < width; ++j) sums[j] += factor * row[j];
  }
  float* const matrix = e.matrix + i * e.m + first;
  if (e.rest) {
    float* const rest = e.rest + i * e.m + first;
    for (std::int64_t j = 0; j < width; ++j) rest[j] = matrix[j] - e.share * sums[j];
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

}  // namespace

Orthonormal orthonormalise(const Vectors& vectors, std::span<double> scratch) {
  const std::int64_t length = vectors.length;
  double* const work = scratch.data();
  Orthonormal result;
  for (std::int64_t v = 0; v < vectors.count; ++v) {
    const float* const from = vectors.vector(v);
    for (std::int64_t i = 0; i < length; ++i) work[v * length + i] = from[i * vectors.element_stride];
    result.finite = result.finite && std::isfinite(dot(work + v * length, work + v * length, length));
  }
  if (!result.finite) return result;
  for (std::int64_t v = 0; v < vectors.count; ++v) {
    const bool left = orthonormalise_last(work, v, work + v * length, length);
    result.complete = result.complete && left;
  }
  for (std::int64_t v = 0; v < vectors.count; ++v) {
    float* const to = vectors.vector(v);
    for (std::int64_t i = 0; i < length; ++i)
      to[i * vectors.element_stride] = static_cast<float>(work[v * length + i]);
  }
  return result;
}

void expand(const Expansion& expansion, int threads) {
  constexpr std::int64_t elements_per_thread = 1 << 15;
  const std::int64_t rows = expansion.n;
  const auto useful = rows * expansion.m / elements_per_thread;
  const int team =
      static_cast<int>(std::clamp<std::int64_t>(std::min<std::int64_t>(useful, rows), 1, threads));
  if (team == 1) return expand_rows(expansion, 0, rows);
#pragma omp parallel for num_threads(team) schedule(static, 1)
  for (int thread = 0; thread < team; ++thread) {
    flush_denormals();
    expand_rows(expansion, rows * thread / team, rows * (thread + 1) / team);
  }
}

}  // namespace lockstep::ddp
