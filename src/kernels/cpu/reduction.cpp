// Reductions over axes, running sums, and sums of all elements.
#include "ops/reduction.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/update.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 16384;
constexpr std::int64_t tile = 1024;      // columns that are folded together
constexpr std::int64_t lanes = 128;      // width in elements of narrow columns folded side by side
constexpr std::int64_t max_slices = 64;  // of the rows, where there are few columns
constexpr std::int64_t slice_elements = 32768;

/// The second input of terms: elements of x's type, or floats that are the same in every row.
template <class Fold, class E>
using Other = std::conditional_t<ops::folds_pairs<Fold>, E, float>;

/// The term of element i of x.
template <class Fold, class E>
float term_of(const E* x, std::int64_t i, const Other<Fold, E>* other, std::int64_t at) {
  if constexpr (ops::folds_terms<Fold>)
    return Fold::term(to_float(x[i]), to_float(other[at]));
  else
    return to_float(x[i]);
}

/// folds[c] = join(folds[c], column c of rows that are `stride` apart).
template <class Fold, class E>
void fold_rows(const E* x, const Other<Fold, E>* other, std::int64_t rows, std::int64_t stride,
               std::int64_t columns, double* folds) {
  constexpr std::int64_t rows_in_float = 64;
  for (std::int64_t row = 0; row < rows;) {
    float part[tile];
    std::fill_n(part, columns, Fold::start);
    for (const std::int64_t end = std::min(rows, row + rows_in_float); row < end; ++row, x += stride) {
#pragma GCC ivdep
      for (std::int64_t c = 0; c < columns; ++c) part[c] = Fold::join(part[c], term_of<Fold>(x, c, other, c));
      if constexpr (ops::folds_pairs<Fold>) other += stride;
    }
#pragma GCC ivdep
    for (std::int64_t c = 0; c < columns; ++c) folds[c] = Fold::join(folds[c], static_cast<double>(part[c]));
  }
}

/// The number of rows folded side by side.
std::int64_t rows_together(const ops::ReductionSizes& sizes) {
  return std::max<std::int64_t>(1, std::min(lanes / sizes.period, sizes.rows));
}

/// Folds columns [first, first + columns) of rows [begin, end) of a group's slabs.
template <class Fold, class E>
void fold_slabs(const ops::ReductionSizes& sizes, const E* group, const Other<Fold, E>* other,
                std::int64_t begin, std::int64_t end, std::int64_t first, std::int64_t columns,
                double* folds) {
  const std::int64_t period = sizes.period, together = rows_together(sizes);
  std::fill_n(folds, together * columns, static_cast<double>(Fold::start));
  for (std::int64_t row = begin; row < end;) {
    const std::int64_t in_slab = row % sizes.rows, count = std::min(sizes.rows - in_slab, end - row);
    const std::int64_t at = sizes.slabs.offsets(row / sizes.rows)[0] + in_slab * period + first;
    const std::int64_t whole = count / together, tail = at + whole * together * period;
    const auto other_at = [other](std::int64_t offset) {
      return ops::folds_pairs<Fold> ? other + offset : other;
    };
    fold_rows<Fold>(group + at, other_at(at), whole, together * period, together * columns, folds);
    fold_rows<Fold>(group + tail, other_at(tail), 1, period, count % together * columns, folds);
    row += count;
  }
  for (std::int64_t copies = together; copies > 1;) {
    const std::int64_t half = (copies + 1) / 2;
    for (std::int64_t c = 0; c < (copies - half) * columns; ++c)
      folds[c] = Fold::join(folds[c], folds[c + half * columns]);
    copies = half;
  }
}

template <class Fold>
void write(const ops::ReduceAxes<Fold>& op, std::int64_t first, std::int64_t count, const double* folds) {
  by_type_of(op.y, [&]<class E>(E) {
    E* const to = op.y.template data<E>() + first;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(op.factor * folds[i]);
      store(to[i], op.accumulate ? to_float(to[i]) + value : value);
    }
  });
}

/// Whether groups are so short that each is folded element by element, in float32.
bool has_short_groups(const ops::ReductionSizes& sizes) {
  return sizes.slabs.rank == 0 && sizes.period <= 64 && sizes.rows * sizes.period <= 64;
}

/// Folds groups [first, first + count).
template <class Fold, class E>
void fold_short_groups(const ops::ReductionSizes& sizes, const E* x, const Other<Fold, E>* other,
                       std::int64_t first, std::int64_t count, double* folds) {
  const std::int64_t rows = sizes.rows, period = sizes.period;
  for (std::int64_t group = 0; group < count; ++group) {
    const std::int64_t from = sizes.groups.offsets(first + group)[0];
    for (std::int64_t c = 0; c < period; ++c) {
      const auto term = [&](std::int64_t row) {
        const std::int64_t at = from + row * period + c;
        return term_of<Fold>(x, at, other, ops::folds_pairs<Fold> ? at : group * period + c);
      };
      float part[4] = {Fold::start, Fold::start, Fold::start, Fold::start};
      std::int64_t row = 0;
      for (; row + 4 <= rows; row += 4) {
        for (int i = 0; i < 4; ++i) part[i] = Fold::join(part[i], term(row + i));
      }
      for (; row < rows; ++row) part[0] = Fold::join(part[0], term(row));
      const float fold = Fold::join(Fold::join(part[0], part[1]), Fold::join(part[2], part[3]));
      folds[group * period + c] = static_cast<double>(fold);
    }
  }
}

/// Repeats the others of y's shape from `at` on, as floats.
template <class Fold>
void repeat_others(const ops::ReduceAxes<Fold>& op, std::int64_t at, std::int64_t period, std::int64_t count,
                   float* row) {
  by_type_of(op.other, [&]<class O>(O) {
    const O* const other = op.other.template data<O>() + at;
    for (std::int64_t i = 0; i < count; ++i) row[i] = to_float(other[i % period]);
  });
}

/// The others of x's shape, or those in `row`; null if the fold has none.
template <class Fold, class E>
const Other<Fold, E>* others(const ops::ReduceAxes<Fold>& op, const float* row) {
  if constexpr (ops::folds_pairs<Fold>)
    return op.other.template data<E>();
  else
    return ops::folds_terms<Fold> ? row : nullptr;
}

template <class Fold, class E>
void fold_all_short_groups(CpuBackend& cpu, const ops::ReduceAxes<Fold>& op, const ops::ReductionSizes& sizes,
                           const E* x) {
  const std::int64_t period = sizes.period, groups = op.y.numel() / period, together = tile / period;
  parallel_items(cpu.threads(), (groups + together - 1) / together,
                 elements_per_thread / std::max<std::int64_t>(1, together * period * sizes.rows),
                 [&](std::int64_t item) {
                   const std::int64_t first = item * together, count = std::min(together, groups - first);
                   float row[tile];
                   double folds[tile];
                   if constexpr (ops::folds_terms<Fold> && !ops::folds_pairs<Fold>)
                     repeat_others(op, first * period, tile, count * period, row);
                   fold_short_groups<Fold>(sizes, x, others<Fold, E>(op, row), first, count, folds);
                   write(op, first * period, count * period, folds);
                 });
}

template <class Fold, class E>
void fold_to_y(CpuBackend& cpu, const ops::ReduceAxes<Fold>& op, const E* x) {
  const ops::ReductionSizes sizes = op.sizes();
  const std::int64_t outputs = op.y.numel(), rows = sizes.all_rows(), period = sizes.period;
  if (outputs == 0) return;
  if (has_short_groups(sizes)) return fold_all_short_groups(cpu, op, sizes, x);
  const std::int64_t tiles = (period + tile - 1) / tile, items = outputs / period * tiles;
  const std::int64_t slice_count = std::min(max_slices / items, outputs * rows / slice_elements),
                     per_slice = std::max<std::int64_t>(1, rows / std::max<std::int64_t>(1, slice_count)),
                     slices = std::max<std::int64_t>(1, (rows + per_slice - 1) / per_slice);
  const Tensor scratch = cpu.scratch(slices > 1 ? slices * outputs : 0, DType::float64);
  double* const partial = scratch.data<double>();
  const std::int64_t item_elements =
      std::min(per_slice, std::max<std::int64_t>(1, rows)) * std::min(period, tile);
  parallel_items(cpu.threads(), items * slices, elements_per_thread / item_elements, [&](std::int64_t item) {
    const std::int64_t slice = item / items, group = item % items / tiles, first = item % tiles * tile,
                       columns = std::min(tile, period - first), at = group * period + first,
                       from = sizes.groups.offsets(group)[0], begin = slice * per_slice,
                       end = std::min(rows, begin + per_slice);
    float row[tile];
    double folds[tile];
    if constexpr (ops::folds_terms<Fold> && !ops::folds_pairs<Fold>)
      repeat_others(op, at, columns, rows_together(sizes) * columns, row);
    const auto* const other = others<Fold, E>(op, row);
    fold_slabs<Fold>(sizes, x + from, ops::folds_pairs<Fold> ? other + from : other, begin, end, first,
                     columns, folds);
    if (slices == 1)
      write(op, at, columns, folds);
    else
      std::copy_n(folds, columns, partial + slice * outputs + at);
  });
  if (slices == 1) return;
  for (std::int64_t slice = 1; slice < slices; ++slice) {
    for (std::int64_t i = 0; i < outputs; ++i)
      partial[i] = Fold::join(partial[i], partial[slice * outputs + i]);
  }
  write(op, 0, outputs, partial);
}

template <class Fold>
void reduce_axes(CpuBackend& cpu, const ops::ReduceAxes<Fold>& op) {
  by_type_of(op.x, [&]<class E>(E) { fold_to_y(cpu, op, op.x.template data<E>()); });
}

/// Columns in tiles, each row after the one before.
void cumulative_sum(CpuBackend& cpu, const ops::CumulativeSum& op) {
  const ops::LineSizes sizes = op.sizes();
  const std::int64_t extent = sizes.extent, inner = sizes.inner, tiles = (inner + tile - 1) / tile;
  if (op.x.numel() == 0) return;
  by_type_of(op.x, [&]<class E>(E) {
    const E* const x = op.x.data<E>();
    E* const y = op.y.data<E>();
    parallel_items(cpu.threads(), sizes.outer * tiles, elements_per_thread / (extent * std::min(inner, tile)),
                   [&](std::int64_t item) {
                     const std::int64_t first = item % tiles * tile, columns = std::min(tile, inner - first);
                     const auto position = [&](std::int64_t i) {
                       const std::int64_t row = op.backwards ? extent - 1 - i : i;
                       return (item / tiles * extent + row) * inner + first;
                     };
                     if (columns == 1) {
                       const std::int64_t begin = position(0), step = op.backwards ? -inner : inner;
                       double sum = 0;
                       for (std::int64_t i = 0, at = begin; i < extent; ++i, at += step) {
                         sum += static_cast<double>(to_float(x[at]));
                         store(y[at], static_cast<float>(sum));
                       }
                       return;
                     }
                     double sums[tile];
                     std::fill_n(sums, columns, 0.0);
                     for (std::int64_t i = 0; i < extent; ++i) {
                       const std::int64_t at = position(i);
#pragma GCC ivdep
                       for (std::int64_t c = 0; c < columns; ++c) {
                         sums[c] += static_cast<double>(to_float(x[at + c]));
                         store(y[at + c], static_cast<float>(sums[c]));
                       }
                     }
                   });
  });
}

constexpr std::int64_t block_elements = ops::BlockSumsOfSquares::block_elements;

template <class T, class From>
void add_into(int threads, std::int64_t count, T* into, const From* x) {
  parallel_ranges(threads, count, elements_per_thread, [=](std::int64_t begin, std::int64_t end) {
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) into[i] += static_cast<T>(x[i]);
  });
}

/// In 16 lanes of float64, in which the square of a float32 is exact.
double sum_of_squares(const float* x, std::int64_t count) {
  Doubles sums[4] = {};
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (int group = 0; group < 4; ++group) {
      Doubles v;
      for (int lane = 0; lane < 4; ++lane) v[lane] = x[i + 4 * group + lane];
      sums[group] += v * v;
    }
  }
  double sum = sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < count; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

}  // namespace

void accumulate(CpuBackend& cpu, const ops::Accumulate& op) {
  if (op.into.dtype() == DType::float64) {
    add_into(cpu.threads(), op.into.stored_numel(), op.into.data<double>(), op.x.data<double>());
  } else if (op.x.dtype() == DType::float64) {
    add_into(cpu.threads(), op.into.stored_numel(), op.into.data<float>(), op.x.data<double>());
  } else {
    add_into(cpu.threads(), op.into.stored_numel(), op.into.data<float>(), op.x.data<float>());
  }
}

void block_sums_of_squares(CpuBackend& cpu, const ops::BlockSumsOfSquares& op) {
  for (const ops::BlockSumsOfSquares::Part& part : op.parts) {
    const std::int64_t count = part.x.numel(), needed = part.blocks.numel();
    if (needed == 0) continue;
    const float* const from = part.x.data<float>();
    double* const to = part.blocks.data<double>();
    parallel_items(cpu.threads(), needed, elements_per_thread / block_elements, [=](std::int64_t block) {
      const std::int64_t first = block * block_elements;
      to[block] = sum_of_squares(from + first, std::min(block_elements, count - first));
    });
  }
}

void enter_reduction(CpuBackend& cpu) {
  ops::Folds::for_each([&]<class Fold>() { cpu.enter<&reduce_axes<Fold>>(); });
  cpu.enter<&cumulative_sum>();
  cpu.enter<&accumulate, &block_sums_of_squares>();
}

}  // namespace lockstep::kernels
