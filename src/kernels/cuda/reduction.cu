// Folds along axes, and cumulative sums.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "ops/reduction.h"

namespace lockstep::kernels {
namespace {

constexpr int threads = 256;
constexpr std::int64_t max_slices = 1024, slice_elements = 8192;  // of the rows, where there are few columns

/// The target of folds: y, or, for a slice of the rows, float64 partial folds.
struct FoldResult {
  void* y;
  bool half, accumulate;  ///< bf16
  double factor;
  double* partial;

  __device__ void write(std::int64_t at, double fold) const {
    if (partial) {
      partial[at] = fold;
    } else if (half) {
      write_to(static_cast<BF16*>(y) + at, static_cast<float>(factor * fold));
    } else {
      write_to(static_cast<float*>(y) + at, static_cast<float>(factor * fold));
    }
  }

 private:
  template <class E>
  __device__ void write_to(E* to, float value) const {
    *to = rounded<E>(accumulate ? to_float(*to) + value : value);
  }
};

/// The division of the work: an item is up to `lanes` columns of a group, in a slice of its rows.
struct FoldShares {
  std::int64_t outputs, rows, slices, rows_per_slice;
  int lanes;     ///< threads of an item
  int columns;   ///< of an item
  int together;  ///< rows that they read at once

  FoldShares(const ops::ReductionSizes& sizes, std::int64_t outputs_, std::int64_t limit)
      : outputs(outputs_), rows(sizes.all_rows()) {
    const std::int64_t groups = outputs / sizes.period;
    const std::int64_t slice_count =
        std::min(limit / (groups * ceil_div(sizes.period, threads)), outputs * rows / slice_elements);
    rows_per_slice = std::max<std::int64_t>(1, rows / std::max<std::int64_t>(1, slice_count));
    slices = std::max<std::int64_t>(1, ceil_div(rows, rows_per_slice));
    const bool narrow = sizes.period <= 32 && rows_per_slice * sizes.period <= 512;
    lanes = narrow ? 32 : threads;
    columns = static_cast<int>(std::min<std::int64_t>(lanes, sizes.period));
    together = lanes / columns;
  }
  std::int64_t items(std::int64_t period) const {
    return outputs / period * ceil_div(period, columns) * slices;
  }
};

/// Walks down a column of the slabs of a group.
struct FoldWalk {
  const ops::StridedDimensions<1>& slabs;
  std::int64_t rows, period, step;
  std::int64_t slab, row, slab_at;

  __device__ FoldWalk(const ops::ReductionSizes& sizes, std::int64_t first_row, int together)
      : slabs(sizes.slabs),
        rows(sizes.rows),
        period(sizes.period),
        step(together),
        slab(first_row / rows),
        row(first_row % rows),
        slab_at(slabs.offsets(slab)[0]) {}
  /// Returns the offset of this row and moves to the next.
  __device__ std::int64_t next() {
    if (row >= rows) {
      slab += row / rows;
      row %= rows;
      slab_at = slabs.offsets(slab)[0];
    }
    const std::int64_t at = slab_at + row * period;
    row += step;
    return at;
  }
};

/// The folded elements of a column: those of x, or their terms.
template <class Fold, class E>
struct FoldColumn {
  const E *x, *pairs;  ///< pairs: the other, of x's shape
  float other = 0;     ///< the column's, of y's shape

  struct Element {
    E x, pair;
  };
  __device__ Element load(std::int64_t at) const {
    return {x[at], ops::folds_pairs<Fold> ? pairs[at] : x[at]};
  }
  __device__ double term(const Element& element) const {
    if constexpr (!ops::folds_terms<Fold>)
      return static_cast<double>(to_float(element.x));
    else
      return Fold::term(to_float(element.x), ops::folds_pairs<Fold> ? to_float(element.pair) : other);
  }
};

/// The second input of terms.
struct FoldOther {
  const void* data = nullptr;
  bool half = false;  ///< bf16
};

template <class Fold, class E>
__global__ void __launch_bounds__(threads)
    fold_items(const __grid_constant__ ops::ReductionSizes sizes, const __grid_constant__ FoldShares shares,
               const E* x, FoldOther other, std::int64_t items, FoldResult result) {
  __shared__ double shared[threads];
  constexpr int at_once = 4;  // loads in flight
  const int lane = static_cast<int>(threadIdx.x) % shares.lanes, columns = shares.columns,
            per_block = threads / shares.lanes;
  const std::int64_t tiles = ceil_div(sizes.period, columns), groups = shares.outputs / sizes.period,
                     earlier = part_number() * shares.outputs;  // outputs of earlier parts
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * per_block; first < items;
       first += static_cast<std::int64_t>(gridDim.x) * per_block) {
    const std::int64_t item = first + static_cast<int>(threadIdx.x) / shares.lanes,
                       slice = item / (groups * tiles), group = item / tiles % groups,
                       column = item % tiles * columns + lane % columns;
    const bool works = item < items && lane < shares.together * columns && column < sizes.period;
    double fold = Fold::start;
    if (works) {
      const std::int64_t from = earlier * shares.rows + sizes.groups.offsets(group)[0] + column,
                         output = earlier + group * sizes.period + column;
      FoldColumn<Fold, E> in{x + from, static_cast<const E*>(other.data) + from};
      if constexpr (ops::folds_terms<Fold> && !ops::folds_pairs<Fold>)
        in.other = other.half ? to_float(static_cast<const BF16*>(other.data)[output])
                              : static_cast<const float*>(other.data)[output];
      std::int64_t row = slice * shares.rows_per_slice + lane / columns;
      const std::int64_t last = (slice + 1) * shares.rows_per_slice,
                         end = last < shares.rows ? last : shares.rows;
      const std::int64_t step = shares.together;
      if (row < end) {
        FoldWalk walk(sizes, row, shares.together);
        for (; row + (at_once - 1) * step < end; row += at_once * step) {
          typename FoldColumn<Fold, E>::Element elements[at_once];
#pragma unroll
          for (int i = 0; i < at_once; ++i) elements[i] = in.load(walk.next());
#pragma unroll
          for (int i = 0; i < at_once; ++i) fold = Fold::join(fold, in.term(elements[i]));
        }
        for (; row < end; row += step) fold = Fold::join(fold, in.term(in.load(walk.next())));
      }
    }
    shared[threadIdx.x] = fold;
    for (int copies = shares.together; copies > 1;) {
      const int half = (copies + 1) / 2;
      __syncthreads();
      if (lane < (copies - half) * columns) {
        fold = Fold::join(fold, shared[threadIdx.x + half * columns]);
        shared[threadIdx.x] = fold;
      }
      copies = half;
    }
    if (works && lane < columns)
      result.write(earlier * shares.slices + slice * shares.outputs + group * sizes.period + column, fold);
    __syncthreads();
  }
}

template <class Fold, class E>
void launch_fold(const Launch& on, int parts, const ops::ReductionSizes& sizes, const FoldShares& shares,
                 const E* x, const FoldOther& other, const FoldResult& result) {
  const std::int64_t items = shares.items(sizes.period);
  const dim3 grid = for_parts(grid_for(items * shares.lanes, threads, on), parts);
  fold_items<Fold><<<grid, threads, 0, on.stream>>>(sizes, shares, x, other, items, result);
}

template <class Fold>
void reduce_axes(CudaBackend& gpu, const ops::ReduceAxes<Fold>& op, int parts) {
  const std::int64_t outputs = op.y.numel();
  if (outputs == 0) return;
  const Launch on = gpu.launch();
  const ops::ReductionSizes sizes = op.sizes();
  const FoldShares shares(sizes, outputs, max_slices);
  const FoldResult result{op.y.raw(), op.y.dtype() == DType::bfloat16, op.accumulate, op.factor, nullptr};
  const bool whole = shares.slices == 1;
  const Tensor scratch = gpu.scratch(whole ? 0 : parts * shares.slices * outputs, DType::float64);
  FoldOther other;
  if constexpr (ops::folds_terms<Fold>) other = {op.other.raw(), op.other.dtype() == DType::bfloat16};
  FoldResult first = result;
  if (!whole) first.partial = scratch.data<double>();
  by_type_of(op.x, [&]<class E>(E) {
    launch_fold<Fold>(on, parts, sizes, shares, static_cast<const E*>(op.x.template data<E>()), other, first);
  });
  if (whole) return;
  ops::ReductionSizes folds;
  folds.period = outputs;
  folds.rows = shares.slices;
  launch_fold<typename Fold::Joined>(on, parts, folds, FoldShares(folds, outputs, 1),
                                     static_cast<const double*>(first.partial), {}, result);
}

/// Position number i of a line, in the order of the sums.
__device__ std::int64_t line_place(const ops::LineSizes& sizes, std::int64_t line, std::int64_t i,
                                   bool backwards) {
  const std::int64_t row = backwards ? sizes.extent - 1 - i : i;
  return (line / sizes.inner * sizes.extent + row) * sizes.inner + line % sizes.inner;
}

/// One thread per line.
template <class E>
__global__ void __launch_bounds__(threads)
    scan_lines(ops::LineSizes sizes, bool backwards, const E* x, E* y) {
  for (std::int64_t line = global_thread(); line < sizes.outer * sizes.inner; line += global_threads()) {
    double sum = 0;
    for (std::int64_t i = 0; i < sizes.extent; ++i) {
      const std::int64_t at = line_place(sizes, line, i, backwards);
      sum += static_cast<double>(to_float(x[at]));
      y[at] = rounded<E>(sum);
    }
  }
}

/// One block per line, for few lines: sums within warps, plus those of the warps before.
template <class E>
__global__ void __launch_bounds__(threads)
    scan_long_lines(ops::LineSizes sizes, bool backwards, const E* x, E* y) {
  __shared__ double of_warp[threads / 32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (std::int64_t line = blockIdx.x; line < sizes.outer * sizes.inner; line += gridDim.x) {
    double before = 0;
    for (std::int64_t first = 0; first < sizes.extent; first += threads) {
      const std::int64_t i = first + threadIdx.x, at = line_place(sizes, line, i, backwards);
      double sum = i < sizes.extent ? static_cast<double>(to_float(x[at])) : 0;
      for (int offset = 1; offset < 32; offset *= 2) {
        const double other = __shfl_sync(0xffffffffu, sum, lane < offset ? lane : lane - offset);
        if (lane >= offset) sum += other;
      }
      if (lane == 31) of_warp[warp] = sum;
      __syncthreads();
      double up_to = before;
      for (int w = 0; w < threads / 32; ++w) {
        if (w == warp && i < sizes.extent) y[at] = rounded<E>(up_to + sum);
        up_to += of_warp[w];
      }
      before = up_to;
      __syncthreads();
    }
  }
}

void cumulative_sum(CudaBackend& gpu, const ops::CumulativeSum& op) {
  const ops::LineSizes sizes = op.sizes();
  const std::int64_t lines = sizes.outer * sizes.inner;
  if (op.x.numel() == 0) return;
  const Launch on = gpu.launch();
  const bool few = sizes.inner == 1 || lines < 32768;
  by_type_of(op.x, [&]<class E>(E) {
    const E* const x = op.x.data<E>();
    E* const y = op.y.data<E>();
    if (few && sizes.extent > 32)
      scan_long_lines<<<grid_for(lines * threads, threads, on), threads, 0, on.stream>>>(sizes, op.backwards,
                                                                                         x, y);
    else
      scan_lines<<<grid_for(lines, threads, on), threads, 0, on.stream>>>(sizes, op.backwards, x, y);
  });
}

}  // namespace

void enter_reduction(CudaBackend& gpu) {
  ops::Folds::for_each([&]<class Fold>() { gpu.enter_at_once<&reduce_axes<Fold>>(); });
  gpu.enter<&cumulative_sum>();
}

}  // namespace lockstep::kernels
