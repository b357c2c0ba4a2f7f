// Indexing along an axis, rows of a table, their gradients, and folds of segments.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "lockstep/ops/formulas.h"
#include "lockstep/ops/gather.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 16384, tile = 1024;

/// The indices. DataError with the first one outside [0, extent).
const std::int64_t* indices_inside(CpuBackend& cpu, const char* operation, const Tensor& indices,
                                   std::int64_t extent) {
  const auto* const index = indices.data<std::int64_t>();
  const std::int64_t count = indices.numel();
  std::atomic<std::int64_t> outside = count;
  parallel_ranges(cpu.threads(), count, elements_per_thread, [&](std::int64_t begin, std::int64_t end) {
    const auto* const found =
        std::find_if(index + begin, index + end, [extent](std::int64_t i) { return i < 0 || i >= extent; });
    std::int64_t first = outside;
    while (found - index < std::min(first, end) && !outside.compare_exchange_weak(first, found - index)) {
    }
  });
  if (const std::int64_t first = outside; first < count)
    ops::throw_index_outside(operation, index[first], first, extent);
  return index;
}

/// Calls body(o, first, columns) for tiles of the columns; `rows`: the cost of one column.
template <class Body>
void for_columns(int threads, const ops::GatherSizes& sizes, std::int64_t rows, const Body& body) {
  const std::int64_t width =
      std::max<std::int64_t>(16, std::min(tile, elements_per_thread / std::max<std::int64_t>(1, rows)));
  const std::int64_t tiles = (sizes.inner + width - 1) / width;
  parallel_items(threads, sizes.outer * tiles,
                 elements_per_thread / std::max<std::int64_t>(1, rows * std::min(width, sizes.inner)),
                 [&](std::int64_t item) {
                   const std::int64_t first = item % tiles * width;
                   body(item / tiles, first, std::min(width, sizes.inner - first));
                 });
}

void gather(CpuBackend& cpu, const ops::Gather& op) {
  const ops::GatherSizes sizes = op.sizes();
  const auto* const index = indices_inside(cpu, op.function, op.indices, sizes.extent);
  by_type_of(op.x, [&]<class E>(E) {
    const E* const x = op.x.data<E>();
    E* const y = op.y.data<E>();
    for_columns(
        cpu.threads(), sizes, sizes.taken, [&](std::int64_t o, std::int64_t first, std::int64_t columns) {
          for (std::int64_t i = 0; i < sizes.taken; ++i) {
            const auto* const at = index + sizes.index_of(o, i, first);
            E* const to = y + (o * sizes.taken + i) * sizes.inner + first;
            const E* const from = x + o * sizes.extent * sizes.inner + first;
            if (!sizes.by_element) {
              std::memcpy(to, from + *at * sizes.inner, static_cast<std::size_t>(columns) * sizeof(E));
            } else {
              for (std::int64_t c = 0; c < columns; ++c) to[c] = from[at[c] * sizes.inner + c];
            }
          }
        });
  });
}

/// y = the folds of x over equal indices, in their order; 0 where no index points.
template <class Fold>
void fold(int threads, const ops::GatherSizes& sizes, const std::int64_t* index, const float* x, float* y) {
  for_columns(threads, sizes, sizes.taken + sizes.extent,
              [&](std::int64_t o, std::int64_t first, std::int64_t columns) {
                float* const to = y + o * sizes.extent * sizes.inner + first;
                const std::int64_t step = sizes.by_element ? 1 : 0;
                for (std::int64_t row = 0; row < sizes.extent; ++row)
                  std::fill_n(to + row * sizes.inner, columns, 0.0f);
                for (std::int64_t i = 0; Fold::start != 0 && i < sizes.taken; ++i) {
                  const auto* const at = index + sizes.index_of(o, i, first);
                  for (std::int64_t c = 0; c < columns; ++c) to[at[c * step] * sizes.inner + c] = Fold::start;
                }
                for (std::int64_t i = 0; i < sizes.taken; ++i) {
                  const auto* const at = index + sizes.index_of(o, i, first);
                  const float* const from = x + (o * sizes.taken + i) * sizes.inner + first;
#pragma GCC ivdep
                  for (std::int64_t c = 0; c < columns; ++c) {
                    float& target = to[at[c * step] * sizes.inner + c];
                    target = Fold::join(target, from[c]);
                  }
                }
              });
}

void gather_backward(CpuBackend& cpu, const ops::GatherBackward& op) {
  const ops::GatherSizes sizes = op.sizes();
  const auto* const index = indices_inside(cpu, op.name, op.indices, sizes.extent);
  fold<ops::Total>(cpu.threads(), sizes, index, op.dy.data<float>(), op.dx.data<float>());
}

template <class Fold, class Op>
void fold_segments(CpuBackend& cpu, const Op& op) {
  const ops::GatherSizes sizes = op.sizes();
  const auto* const index = indices_inside(cpu, op.function, op.indices, sizes.extent);
  fold<Fold>(cpu.threads(), sizes, index, op.x.template data<float>(), op.y.template data<float>());
}

void keep_steps(CpuBackend& cpu, const ops::KeepSteps& op) {
  const auto [sequences, steps, inner] = op.sizes();
  const std::int64_t width = steps * inner, row = inner;
  const auto* const length = indices_inside(cpu, op.function, op.lengths, steps + 1);
  const auto keep = [&]<class E>(E other) {
    const E* const x = op.x.data<E>();
    E* const y = op.y.data<E>();
    parallel_items(cpu.threads(), sequences, elements_per_thread / std::max<std::int64_t>(1, width),
                   [=, last = op.last](std::int64_t n) {
                     const std::int64_t end = length[n] * row,
                                        first = last ? std::max<std::int64_t>(end - row, 0) : 0;
                     E* const to = y + n * width;
                     if (x != y) std::copy_n(x + n * width + first, end - first, to + first);
                     std::fill(to, to + first, other);
                     std::fill(to + end, to + width, other);
                   });
  };
  if (op.x.dtype() == DType::int64) return keep(static_cast<std::int64_t>(op.value));
  by_type_of(op.x, [&]<class E>(E other) {
    store(other, static_cast<float>(op.value));
    keep(other);
  });
}

void embedding(CpuBackend& cpu, const ops::Embedding& op) {
  const ops::TableSizes table = op.sizes();
  const std::int64_t width = table.width;
  const auto* const index = indices_inside(cpu, op.name, op.indices, table.rows);
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
  const auto* const index = indices_inside(cpu, op.name, op.indices, table.rows);
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

}  // namespace

void enter_gather(CpuBackend& cpu) {
  cpu.enter<&gather, &keep_steps>();
  cpu.enter<&embedding, &embedding_backward>(Computes::in_float32);
  cpu.enter<&gather_backward, &fold_segments<ops::Total, ops::SegmentSum>,
            &fold_segments<ops::Largest, ops::SegmentMax>>(Computes::in_float32);
}

}  // namespace lockstep::kernels
