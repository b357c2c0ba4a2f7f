// Indexing along an axis, rows of a table, their gradients, and folds of segments, in the order of the
// indices: uses are sorted stably by their target, and a thread (for a table: a block) folds the uses of one
// element (row).
#include <cub/device/device_radix_sort.cuh>
#include <limits>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/libraries.h"
#include "lockstep/ops/formulas.h"
#include "lockstep/ops/gather.h"

namespace lockstep::kernels {
namespace {

constexpr int block = 256;

/// The target of a use: a position of the axis in its part, or, by_element, an element of dx. Indices out of
/// range get a target past the last one. uses: of a part; named: of all parts.
__global__ void __launch_bounds__(block)
    name_uses(ops::GatherSizes sizes, const std::int64_t* indices, std::int64_t uses, std::int64_t named,
              std::int32_t* names, std::int32_t* numbers) {
  const std::int64_t first = part_number() * uses;
  for (std::int64_t e = first + global_thread(); e < first + uses; e += global_threads()) {
    const std::int64_t index = indices[e];
    std::int64_t name = part_number() * sizes.extent + index;
    if (sizes.by_element)
      name = (e / (sizes.inner * sizes.taken) * sizes.extent + index) * sizes.inner + e % sizes.inner;
    names[e] = static_cast<std::int32_t>(index >= 0 && index < sizes.extent ? name : named);
    numbers[e] = static_cast<std::int32_t>(e);
  }
}

/// Memory for the row of each use, and the sort. Uses without a row get row number `rows`.
class SortedUses {
 public:
  /// UsageError with the operation's name if there are more than the sort can number.
  SortedUses(CudaBackend& gpu, const char* operation, std::int64_t uses, std::int64_t rows);
  /// Stable. sizes, indices: of the first of `parts`, each of which has its own rows.
  void sort(const ops::GatherSizes& sizes, const Tensor& indices, int parts = 1);
  const std::int32_t* sorted_rows() const { return numbers() + run_; }
  const std::int32_t* sorted_numbers() const { return sorted_rows() + run_; }

 private:
  // [uses] each: the rows, and 0, 1, 2 ...
  std::int32_t* rows() const { return scratch_.data<std::int32_t>(); }
  std::int32_t* numbers() const { return rows() + run_; }
  void sort_pairs();

  CudaBackend& gpu_;
  std::int64_t uses_, rows_, run_;
  int bits_ = 1;
  std::size_t sort_bytes_ = 0;
  Tensor scratch_;
};

SortedUses::SortedUses(CudaBackend& gpu, const char* operation, std::int64_t uses, std::int64_t rows)
    : gpu_(gpu), uses_(uses), rows_(rows), run_(ceil_div(uses, 64) * 64) {  // 256 bytes
  constexpr std::int64_t max_count = std::numeric_limits<std::int32_t>::max() - 1;
  if (std::max(uses, rows) > max_count)
    throw UsageError("{} on a GPU: {} indices into {} rows are too many; at most {} are supported", operation,
                     uses, rows, max_count);
  while ((std::int64_t{1} << bits_) <= rows) ++bits_;  // `rows` is a key, too
  if (uses == 0) return;
  sort_pairs();  // without memory it returns the size that it needs
  scratch_ = gpu.scratch(4 * run_ + ceil_div(static_cast<std::int64_t>(sort_bytes_), 4), DType::int32);
}

void SortedUses::sort(const ops::GatherSizes& sizes, const Tensor& indices, int parts) {
  const Launch on = gpu_.launch();
  const std::int64_t uses = uses_ / parts;
  name_uses<<<for_parts(grid_for(uses, block, on), parts), block, 0, on.stream>>>(
      sizes, indices.data<std::int64_t>(), uses, rows_, rows(), numbers());
  sort_pairs();
}

void SortedUses::sort_pairs() {
  std::int32_t* const from = scratch_ ? rows() : nullptr;
  std::int32_t* const to = from ? from + 2 * run_ : nullptr;
  check(cub::DeviceRadixSort::SortPairs(from ? to + 2 * run_ : nullptr, sort_bytes_, from, to,
                                        from ? from + run_ : nullptr, from ? to + run_ : nullptr, uses_, 0,
                                        bits_, gpu_.launch().stream),
        "cub::DeviceRadixSort", gpu_.device().index);
}

template <class T>
__global__ void __launch_bounds__(block)
    gather_elements(ops::GatherSizes sizes, const T* x, const std::int64_t* indices, T* y) {
  const std::int64_t count = sizes.outer * sizes.taken * sizes.inner;
  for (std::int64_t e = global_thread(); e < count; e += global_threads()) {
    const std::int64_t row = e / sizes.inner, column = e % sizes.inner;
    const std::int64_t index = indices[sizes.by_element ? e : row % sizes.taken];
    const bool there = index >= 0 && index < sizes.extent;
    y[e] = there ? x[(row / sizes.taken * sizes.extent + index) * sizes.inner + column] : rounded<T>(0.0f);
  }
}

/// A thread for each use that is the first of its target, and, if not by_element, for each column of [outer,
/// inner].
template <class Fold, class T>
__global__ void __launch_bounds__(block)
    fold_uses(ops::GatherSizes sizes, const std::int32_t* names, const std::int32_t* numbers,
              std::int64_t uses, std::int64_t named, const T* x, T* y) {
  const std::int64_t columns = sizes.by_element ? 1 : sizes.outer * sizes.inner;
  for (std::int64_t e = global_thread(); e < uses * columns; e += global_threads()) {
    const std::int64_t first = e / columns, column = e % columns, name = names[first];
    if (name >= named || (first > 0 && names[first - 1] == name)) continue;
    const std::int64_t o = column / sizes.inner, c = column % sizes.inner;
    const auto position = [&](std::int64_t extent, std::int64_t row) {
      return sizes.by_element ? row : (o * extent + row) * sizes.inner + c;
    };
    float folded = Fold::start;
    for (std::int64_t i = first; i < uses && names[i] == name; ++i)
      folded = Fold::join(folded, to_float(x[position(sizes.taken, numbers[i])]));
    y[position(sizes.extent, name)] = rounded<T>(folded);
  }
}

void gather(CudaBackend& gpu, const ops::Gather& op) {
  const ops::GatherSizes sizes = op.sizes();
  const Launch on = gpu.launch();
  check_data(on, op.indices, sizes.extent, nullptr, DataFault::index_outside, op.function, gpu.fault());
  if (op.y.numel() == 0) return;
  by_type_of(op.x, [&]<class T>(T) {
    gather_elements<<<grid_for(op.y.numel(), block, on), block, 0, on.stream>>>(
        sizes, static_cast<const T*>(op.x.data<T>()), op.indices.data<std::int64_t>(), op.y.data<T>());
  });
}

/// y = the folds of x over equal indices, in their order; 0 where no index points.
template <class Fold>
void fold(CudaBackend& gpu, const char* operation, const ops::GatherSizes& sizes, const Tensor& indices,
          const Tensor& x, const Tensor& y) {
  const std::int64_t uses = indices.numel(), named = sizes.by_element ? y.numel() : sizes.extent;
  SortedUses sorted(gpu, operation, uses, named);
  const Launch on = gpu.launch();
  check(cudaMemsetAsync(y.raw(), 0, y.bytes(), on.stream), "cudaMemsetAsync", gpu.device().index);
  if (x.numel() == 0) return;
  sorted.sort(sizes, indices);
  by_type_of(x, [&]<class T>(T) {
    fold_uses<Fold><<<grid_for(x.numel(), block, on), block, 0, on.stream>>>(
        sizes, sorted.sorted_rows(), sorted.sorted_numbers(), uses, named, static_cast<const T*>(x.data<T>()),
        y.data<T>());
  });
}

template <class T>
struct KeptStep {
  const T* x;
  const std::int64_t* lengths;
  std::int64_t steps, inner;
  bool last;
  T other, *y;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t step = i / inner % steps, length = lengths[i / inner / steps];
    y[i] = step < length && (!last || step == length - 1) ? x[i] : other;
  }
};

void keep_steps(CudaBackend& gpu, const ops::KeepSteps& op) {
  const auto sizes = op.sizes();
  const Launch on = gpu.launch();
  check_data(on, op.lengths, sizes.steps + 1, nullptr, DataFault::index_outside, op.function, gpu.fault());
  const auto keep = [&]<class T>(T other) {
    for_elements(on, op.x.numel(),
                 KeptStep<T>{op.x.data<T>(), op.lengths.data<std::int64_t>(), sizes.steps, sizes.inner,
                             op.last, other, op.y.data<T>()});
  };
  if (op.x.dtype() == DType::int64) return keep(static_cast<std::int64_t>(op.value));
  by_type_of(op.x, [&]<class T>(T) {
    if constexpr (sizeof(T) == 2)
      keep(__float2bfloat16_rn(static_cast<float>(op.value)));
    else
      keep(static_cast<float>(op.value));
  });
}

void gather_backward(CudaBackend& gpu, const ops::GatherBackward& op) {
  fold<ops::Total>(gpu, op.name, op.sizes(), op.indices, op.dy, op.dx);
}

template <class Fold, class Op>
void fold_segments(CudaBackend& gpu, const Op& op) {
  const ops::GatherSizes sizes = op.sizes();
  check_data(gpu.launch(), op.indices, sizes.extent, nullptr, DataFault::index_outside, op.function,
             gpu.fault());
  fold<Fold>(gpu, op.function, sizes, op.indices, op.x, op.y);
}

/// A pack of a row of the table; Packed divides its width.
template <int Packed, class T>
struct Gathered {
  const std::int64_t* indices;
  const float* table;
  std::int64_t rows, width;
  T* y;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t packs = width / Packed;
    const std::int64_t use = i / packs, at = i % packs * Packed, row = indices[use];
    const bool there = row >= 0 && row < rows;
    Pack<T, Packed> out;
    for (int lane = 0; lane < Packed; ++lane)
      out.lane[lane] = rounded<T>(there ? table[row * width + at + lane] : 0.0f);
    store_pack(y + use * width + at, out);
  }
};

/// A block for each use that is the first of its row, with a thread per column.
template <class T>
__global__ void __launch_bounds__(block)
    sum_rows(const std::int32_t* keys, const std::int32_t* numbers, std::int64_t uses, std::int64_t rows,
             std::int64_t width, const T* dy, float* dweight) {
  constexpr int at_once = 8;  // loads in flight; the additions stay in order
  for (std::int64_t first = blockIdx.x; first < uses; first += gridDim.x) {
    const std::int64_t row = keys[first];
    if (row >= rows || (first > 0 && keys[first - 1] == row)) continue;
    std::int64_t end = first + 1;
    while (end < uses && keys[end] == row) ++end;
    for (std::int64_t column = threadIdx.x; column < width; column += block) {
      float sum = dweight[row * width + column];
      std::int64_t i = first;
      for (; i + at_once <= end; i += at_once) {
        float values[at_once];
#pragma unroll
        for (int j = 0; j < at_once; ++j)
          values[j] = to_float(dy[static_cast<std::int64_t>(numbers[i + j]) * width + column]);
#pragma unroll
        for (int j = 0; j < at_once; ++j) sum += values[j];
      }
      for (; i < end; ++i) sum += to_float(dy[static_cast<std::int64_t>(numbers[i]) * width + column]);
      dweight[row * width + column] = sum;
    }
  }
}

void embedding(CudaBackend& gpu, const ops::Embedding& op) {
  const ops::TableSizes table = op.sizes();
  const Launch on = gpu.launch();
  check_data(on, op.indices, table.rows, nullptr, DataFault::index_outside, op.name, gpu.fault());
  by_type_of(op.y, [&]<class T>(T) {
    T* const to = op.y.data<T>();
    const auto gather = [&]<int packed>(Width<packed>) {
      for_elements(on, op.y.numel() / packed,
                   Gathered<packed, T>{op.indices.data<std::int64_t>(), op.weight.data<float>(), table.rows,
                                       table.width, to});
    };
    table.width % 4 == 0 && packs_at(to, 4 * sizeof(T)) ? gather(Width<4>{}) : gather(Width<1>{});
  });
}

void embedding_backward(CudaBackend& gpu, const ops::EmbeddingBackward& op, int parts) {
  const auto [rows, width, uses] = op.sizes();
  SortedUses sorted(gpu, op.name, parts * uses, parts * rows);
  const Launch on = gpu.launch();
  float* const dweight = op.dweight.data<float>();
  if (!op.accumulate)
    check(cudaMemsetAsync(dweight, 0, static_cast<std::size_t>(parts) * op.dweight.bytes(), on.stream),
          "cudaMemsetAsync", gpu.device().index);
  if (op.dy.numel() == 0) return;
  sorted.sort(ops::GatherSizes{.extent = rows}, op.indices, parts);
  by_type_of(op.dy, [&, all = parts * uses, of = parts * rows, across = width]<class T>(T) {
    sum_rows<<<grid_for(all * block, block, on), block, 0, on.stream>>>(
        sorted.sorted_rows(), sorted.sorted_numbers(), all, of, across, op.dy.data<T>(), dweight);
  });
}

}  // namespace

void enter_gather(CudaBackend& gpu) {
  gpu.enter<&gather, &gather_backward, &keep_steps, &embedding>();
  gpu.enter<&fold_segments<ops::Total, ops::SegmentSum>, &fold_segments<ops::Largest, ops::SegmentMax>>();
  gpu.enter_at_once<&embedding_backward>();
}

}  // namespace lockstep::kernels
