// Elements of an axis by number, and their gradient.
#include <cstring>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored.h"
#include "kernels/data_error.h"
#include "lockstep/ops/gather.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 16384, tile = 1024;

const std::int64_t* indices_inside(const char* operation, const Tensor& indices, std::int64_t extent) {
  const auto* const index = indices.data<std::int64_t>();
  for (std::int64_t i = 0; i < indices.numel(); ++i) {
    if (index[i] < 0 || index[i] >= extent) throw_index_outside(operation, index[i], i, extent);
  }
  return index;
}

/// body(o, first, columns) for tiles of the columns, whose elements `rows` cost.
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
  const auto* const index = indices_inside(op.name, op.indices, sizes.extent);
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

void gather_backward(CpuBackend& cpu, const ops::GatherBackward& op) {
  const ops::GatherSizes sizes = op.sizes();
  const auto* const index = indices_inside(op.name, op.indices, sizes.extent);
  const float* const dy = op.dy.data<float>();
  float* const dx = op.dx.data<float>();
  for_columns(cpu.threads(), sizes, sizes.taken + sizes.extent,
              [&](std::int64_t o, std::int64_t first, std::int64_t columns) {
                float* const to = dx + o * sizes.extent * sizes.inner + first;
                for (std::int64_t row = 0; row < sizes.extent; ++row)
                  std::fill_n(to + row * sizes.inner, columns, 0.0f);
                for (std::int64_t i = 0; i < sizes.taken; ++i) {
                  const auto* const at = index + sizes.index_of(o, i, first);
                  const float* const from = dy + (o * sizes.taken + i) * sizes.inner + first;
                  const std::int64_t step = sizes.by_element ? 1 : 0;
#pragma GCC ivdep
                  for (std::int64_t c = 0; c < columns; ++c) to[at[c * step] * sizes.inner + c] += from[c];
                }
              });
}

}  // namespace

void enter_gather(CpuBackend& cpu) {
  cpu.enter<&gather>();
  cpu.enter<&gather_backward>(Computes::in_float32);
}

}  // namespace lockstep::kernels
