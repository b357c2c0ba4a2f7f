// Rows of a table by number, and their gradient.
#include <cstring>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/data_error.h"
#include "lockstep/ops/embedding.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 16384;

/// Every index, in the table.
const std::int64_t* checked_indices(const char* operation, const Tensor& indices,
                                    const ops::TableSizes& table) {
  const auto* const index = indices.data<std::int64_t>();
  for (std::int64_t i = 0; i < table.uses; ++i) {
    if (index[i] < 0 || index[i] >= table.rows) throw_index_outside(operation, index[i], i, table.rows);
  }
  return index;
}

}  // namespace

void embedding(CpuBackend& cpu, const ops::Embedding& op) {
  const ops::TableSizes table = op.sizes();
  const std::int64_t width = table.width;
  const auto* const index = checked_indices(op.name, op.indices, table);
  const float* from = op.weight.data<float>();
  float* to = op.y.data<float>();
  if (width == 0) return;
  parallel_items(cpu.threads(), table.uses, elements_per_thread / width, [=](std::int64_t i) {
    std::memcpy(to + i * width, from + index[i] * width, static_cast<std::size_t>(width) * sizeof(float));
  });
}

void embedding_backward(CpuBackend& cpu, const ops::EmbeddingBackward& op) {
  const ops::TableSizes table = op.sizes();
  const std::int64_t rows = table.rows, width = table.width, uses = table.uses;
  const bool accumulate = op.accumulate;
  const auto* const index = checked_indices(op.name, op.indices, table);
  const float* from = op.dy.data<float>();
  float* to = op.dweight.data<float>();
  // Threads share the columns, so that every sum runs in the order of the indices.
  const std::int64_t columns_per_thread =
      std::max<std::int64_t>(16, elements_per_thread / std::max<std::int64_t>(1, uses + rows));
  parallel_ranges(cpu.threads(), width, columns_per_thread, [=](std::int64_t begin, std::int64_t end) {
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

void enter_embedding(CpuBackend& cpu) { cpu.enter<&embedding, &embedding_backward>(Computes::in_float32); }

}  // namespace lockstep::kernels
