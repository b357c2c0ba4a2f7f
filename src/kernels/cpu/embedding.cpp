// Rows of a table by number, and their gradient.
#include <cstring>

#include "kernels/cpu/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/data_error.h"
#include "kernels/problems.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 16384;

/// Checks the shapes, and every index against the table.
Table checked_table(const char* operation, const Tensor& indices, const Tensor& weight, const Tensor& y) {
  const Table table = table_of(operation, indices, weight, y);
  const auto* index = elements<std::int64_t>(operation, "the indices", indices);
  for (std::int64_t i = 0; i < table.uses; ++i) {
    if (index[i] < 0 || index[i] >= table.rows) throw_index_outside(operation, index[i], i, table.rows);
  }
  return table;
}

}  // namespace

void CpuBackend::embedding(const Tensor& indices, const Tensor& weight, const Tensor& y) {
  const auto [rows, width_bound, uses] = checked_table("embedding", indices, weight, y);
  const std::int64_t width = width_bound;
  const auto* index = static_cast<const std::int64_t*>(indices.raw());
  const float* from = plain_floats("embedding", "the table", weight);
  float* to = plain_floats("embedding", "y", y);
  if (width == 0) return;
  parallel_items(threads_, uses, elements_per_thread / width, [=](std::int64_t i) {
    std::memcpy(to + i * width, from + index[i] * width, static_cast<std::size_t>(width) * sizeof(float));
  });
}

void CpuBackend::embedding_backward(const Tensor& dy, const Tensor& indices, const Tensor& dweight,
                                    bool accumulate) {
  const auto [rows_bound, width_bound, uses_bound] =
      checked_table("embedding_backward", indices, dweight, dy);
  const std::int64_t rows = rows_bound, width = width_bound, uses = uses_bound;
  const auto* index = static_cast<const std::int64_t*>(indices.raw());
  const float* from = plain_floats("embedding_backward", "dy", dy);
  float* to = plain_floats("embedding_backward", "dweight", dweight);
  // Threads share the columns, so that every sum runs in the order of the indices.
  const std::int64_t columns_per_thread =
      std::max<std::int64_t>(16, elements_per_thread / std::max<std::int64_t>(1, uses + rows));
  parallel_ranges(threads_, width, columns_per_thread, [=](std::int64_t begin, std::int64_t end) {
    if (!accumulate) {
      for (std::int64_t row = 0; row < rows; ++row)
        std::fill(to + row * width + begin, to + row * width + end, 0.0f);
    }
    for (std::int64_t i = 0; i < uses; ++i) {
      const float* source = from + i * width;
      float* target = to + index[i] * width;
#pragma GCC ivdep
      for (std::int64_t c = begin; c < end; ++c) target[c] += source[c];
    }
  });
}

}  // namespace lockstep::kernels
