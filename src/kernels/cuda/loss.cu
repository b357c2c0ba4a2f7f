// Losses. Cross-entropy reads the logits once forward and once backward, in their own type, or, in place,
// once for both: a row is still in the L2 cache when its gradient overwrites it. Sums over rows run in
// float64 and in an order that depends on their number alone; within a row, the order depends on the number
// of its first element, modulo 16 bytes, too, and not on addresses.
#include "lockstep/ops/loss.h"

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/kernels.h"

namespace lockstep::kernels {
namespace {

constexpr int block = 256;        // threads a row
constexpr int large_block = 768;  // for long rows: fewer rows at a time, so that more of each is cached
constexpr std::int64_t long_row = 8192;

/// Blocks of a multiprocessor: two large ones, of which one reads while the other computes. The rows of three
/// no longer fit into the L2 cache. Reading element by element, which is rare, takes more registers.
constexpr int blocks_at_once(int threads, bool packed) { return threads == large_block && packed ? 2 : 1; }

/// e^x, as exact as its argument: the difference of a bf16 to another number has 8 significant bits.
template <class T>
__device__ float exponential(float x) {
  constexpr float log2_of_e = 1.4426950408889634f;
  return sizeof(T) == 2 ? exp2f(x * log2_of_e) : expf(x);
}

/// The rows of one part.
struct LossRows {
  std::int64_t rows, classes, columns, ignore_index;  // columns: of which the first are the classes
  float label_smoothing;
};

/// The largest of some numbers, and the sum of e^(number - largest). A NaN makes the sum NaN. Computed
/// without branches, because the threads of a warp find their largest numbers at different times.
struct Exponentials {
  float max = -INFINITY, sum = 0;

  /// Subtracted from exponents: finite, unless a number is not.
  __device__ static float base(float max) { return max == -INFINITY ? 0.0f : max; }
  __device__ float sum_by(float base) const { return sum * expf(max - base); }
};

__device__ Exponentials joined(const Exponentials& a, const Exponentials& b) {
  const float max = fmaxf(a.max, b.max), base = Exponentials::base(max);
  return {max, a.sum_by(base) + b.sum_by(base)};
}

template <int Width, class T>
__device__ Exponentials with(const Exponentials& so_far, const Pack<T, Width>& pack) {
  float max = so_far.max;
  for (int lane = 0; lane < Width; ++lane) max = fmaxf(max, to_float(pack.lane[lane]));
  const float base = Exponentials::base(max);
  float sum = so_far.sum_by(base);
  for (int lane = 0; lane < Width; ++lane) sum += exponential<T>(to_float(pack.lane[lane]) - base);
  return {max, sum};
}

/// Whether a target counts.
__device__ bool counts(std::int64_t target, const LossRows& sizes) {
  return target != sizes.ignore_index && target >= 0 && target < sizes.classes;
}

/// Calls f(column, Width) for this thread's columns of a row: packs of 16 bytes, and single elements before
/// the first and after the last, because a row may begin anywhere. row: its number in all parts. Packed: the
/// first row of each part begins with a pack in memory, so that addresses say where packs begin.
template <int Threads, bool Packed, class T, class Function>
__device__ void each_of_row(const LossRows& sizes, std::int64_t row, const T* x, const Function& f) {
  constexpr int width = pack_width<T>;
  std::int64_t begin;  // in its part, modulo packs
  if constexpr (Packed) {
    begin = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(x) / sizeof(T));
  } else {
    begin = (row - part_number() * sizes.rows) * sizes.columns;
  }
  const std::int64_t classes = sizes.classes, to_first = -begin & (width - 1);
  const std::int64_t first = to_first < classes ? to_first : classes;
  for (std::int64_t c = threadIdx.x; c < first; c += Threads) f(c, Width<1>{});
#pragma unroll 2
  for (std::int64_t c = first + threadIdx.x * width; c + width <= classes; c += Threads * width)
    f(c, Width<width>{});
  const std::int64_t left = (classes - first) % width;
  if (threadIdx.x < left) f(classes - left + threadIdx.x, Width<1>{});
}

/// Packs, or, where rows of a part begin between packs in memory, their elements.
template <bool Packed, int Width, class T>
__device__ Pack<T, Width> load_columns(const T* from) {
  if constexpr (Packed) {
    return load_pack<T, Width>(from);
  } else {
    Pack<T, Width> columns;
    for (int lane = 0; lane < Width; ++lane) columns.lane[lane] = from[lane];
    return columns;
  }
}
template <bool Packed, int Width, class T>
__device__ void store_columns(T* to, const Pack<T, Width>& columns) {
  if constexpr (Packed) {
    store_pack(to, columns);
  } else {
    for (int lane = 0; lane < Width; ++lane) to[lane] = columns.lane[lane];
  }
}

/// d = factor * (e^(x - log) - spread) of one row, and at the target less 1 - smoothing; zeros if the row
/// does not count.
template <class T>
struct RowGradient {
  std::int64_t target;
  float log, factor, spread, target_share;
  bool counted;

  __device__ RowGradient(const LossRows& sizes, std::int64_t target_, float log_, float factor_)
      : target(target_),
        log(log_),
        factor(factor_),
        spread(sizes.label_smoothing / static_cast<float>(sizes.classes)),
        target_share(1.0f - sizes.label_smoothing),
        counted(counts(target_, sizes)) {}

  __device__ float at(float x) const { return factor * (exponential<T>(x - log) - spread); }
  /// Columns [c, c + Width). d may be x.
  template <bool Packed, int Width>
  __device__ void write(const T* x, T* d, std::int64_t c) const {
    const auto in = load_columns<Packed, Width>(x + c);
    Pack<T, Width> out;
    for (int lane = 0; lane < Width; ++lane)
      out.lane[lane] = rounded<T>(counted ? at(to_float(in.lane[lane])) : 0.0f);
    if (counted && target >= c && target < c + Width) {  // once in a row
      for (int lane = 0; lane < Width; ++lane) {
        if (target == c + lane)
          out.lane[lane] = rounded<T>(at(to_float(in.lane[lane])) - factor * target_share);
      }
    }
    store_columns<Packed>(d + c, out);
  }
};

/// In place.
template <int Threads, bool Packed, class T>
__device__ void write_gradient(const RowGradient<T>& gradient, T* x, std::int64_t row,
                               const LossRows& sizes) {
  each_of_row<Threads, Packed>(sizes, row, x, [&]<int width>(std::int64_t c, Width<width>) {
    gradient.template write<Packed, width>(x, x, c);
  });
  for (std::int64_t c = sizes.classes + threadIdx.x; c < sizes.columns; c += Threads) x[c] = rounded<T>(0.0f);
}

/// One block per row. With `gradients` a row becomes its gradient; otherwise log_sum_exp is stored for a
/// backward.
template <int Threads, bool gradients, bool Packed, class T>
__global__ void __launch_bounds__(Threads, blocks_at_once(Threads, Packed))
    forward(LossRows sizes, T* logits, const std::int64_t* targets, float* log_sum_exp, double* losses) {
  constexpr int warps = Threads / 32;
  __shared__ float shared_max[warps], shared_sum[warps], shared_log;
  __shared__ double shared_double[32];
  const std::int64_t begin = part_number() * sizes.rows, end = begin + sizes.rows;
  for (std::int64_t row = begin + blockIdx.x; row < end; row += gridDim.x) {
    const std::int64_t target = targets[row];
    T* const x = logits + row * sizes.columns;
    if (!counts(target, sizes)) {  // the same for every thread of the block
      if (threadIdx.x == 0) losses[row] = 0;
      if constexpr (gradients) {
        write_gradient<Threads, Packed>(RowGradient<T>(sizes, target, 0, 1), x, row, sizes);
      } else if (threadIdx.x == 0) {
        log_sum_exp[row] = 0;
      }
      continue;
    }
    Exponentials mine;
    double plain_sum = 0;
    const bool smooth = sizes.label_smoothing > 0;
    each_of_row<Threads, Packed>(sizes, row, x, [&]<int width>(std::int64_t c, Width<width>) {
      const Pack<T, width> in = load_columns<Packed, width>(x + c);
      mine = with(mine, in);
      if (smooth) {
        for (int lane = 0; lane < width; ++lane) plain_sum += static_cast<double>(to_float(in.lane[lane]));
      }
    });
    for (int offset = 16; offset > 0; offset /= 2) {
      mine = joined(mine, {__shfl_xor_sync(0xffffffffu, mine.max, offset),
                           __shfl_xor_sync(0xffffffffu, mine.sum, offset)});
    }
    if (threadIdx.x % 32 == 0) {
      shared_max[threadIdx.x / 32] = mine.max;
      shared_sum[threadIdx.x / 32] = mine.sum;
    }
    __syncthreads();
    if (smooth) plain_sum = block_sum(plain_sum, shared_double);
    if (threadIdx.x == 0) {
      Exponentials all{shared_max[0], shared_sum[0]};
      for (int warp = 1; warp < warps; ++warp) all = joined(all, {shared_max[warp], shared_sum[warp]});
      const double log = static_cast<double>(all.max) + ::log(static_cast<double>(all.sum));
      const double smoothing = static_cast<double>(sizes.label_smoothing);
      double loss = (1 - smoothing) * (log - static_cast<double>(to_float(x[target])));
      if (smooth) loss += smoothing * (log - plain_sum / static_cast<double>(sizes.classes));
      losses[row] = loss;
      shared_log = static_cast<float>(log);
      if constexpr (!gradients) log_sum_exp[row] = shared_log;
    }
    __syncthreads();  // the shared memory of warps is free again, and the row has been read
    if constexpr (gradients) {
      write_gradient<Threads, Packed>(RowGradient<T>(sizes, target, shared_log, 1), x, row, sizes);
      __syncthreads();  // and so is shared_log
    }
  }
}

/// total = {sum of losses, rows that count}: one block for each part.
__global__ void __launch_bounds__(1024)
    fold_rows(LossRows sizes, const std::int64_t* targets, const double* losses, double* total) {
  __shared__ double shared[32];
  double sum = 0, counted = 0;
  targets += part_number() * sizes.rows;
  losses += part_number() * sizes.rows;
  total += 2 * part_number();
  for (std::int64_t row = threadIdx.x; row < sizes.rows; row += 1024) {
    sum += losses[row];
    counted += counts(targets[row], sizes) ? 1 : 0;
  }
  sum = block_sum(sum, shared);
  counted = block_sum(counted, shared);
  if (threadIdx.x == 0) {
    total[0] = sum;
    total[1] = counted;
  }
}

/// dlogits may be the logits. Width divides the rows.
template <int Width, class T>
__global__ void __launch_bounds__(block)
    backward(LossRows sizes, const T* logits, const std::int64_t* targets, const float* log_sum_exp,
             const float* factor, T* dlogits) {
  const float by = factor[part_number()];
  const std::int64_t begin = part_number() * sizes.rows, end = begin + sizes.rows;
  for (std::int64_t row = begin + blockIdx.x; row < end; row += gridDim.x) {
    const std::int64_t first = row * sizes.classes;
    const RowGradient<T> gradient(sizes, targets[row], log_sum_exp[row], by);
    for (std::int64_t c = threadIdx.x * Width; c < sizes.classes; c += block * Width)
      gradient.template write<true, Width>(logits + first, dlogits + first, c);
  }
}

/// x = factor * x; the blocks end at once if the factor is 1.
template <class T>
__global__ void __launch_bounds__(block) scale_by(std::int64_t count, const float* factor, T* x) {
  const float by = factor[part_number()];
  if (by == 1.0f) return;
  x += part_number() * count;
  for (std::int64_t i = global_thread(); i < count; i += global_threads())
    x[i] = rounded<T>(by * to_float(x[i]));
}

/// hits[row] = 1 where the first of the largest logits is the target. One warp per row.
template <class T>
__global__ void __launch_bounds__(block) find_hits(std::int64_t rows, std::int64_t classes, const T* logits,
                                                   const std::int64_t* targets, std::int32_t* hits) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (std::int64_t row = global_thread() / 32; row < rows; row += global_threads() / 32) {
    const T* x = logits + row * classes;
    float max = -INFINITY;
    std::int64_t position = classes;  // none yet
    for (std::int64_t c = lane; c < classes; c += 32) {
      const float value = to_float(x[c]);
      if (value > max || (position == classes && value == max)) {
        max = value;
        position = c;
      }
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, max, offset);
      const auto other_position =
          static_cast<std::int64_t>(__shfl_xor_sync(0xffffffffu, static_cast<long long>(position), offset));
      if (other > max || (other == max && other_position < position)) {
        max = other;
        position = other_position;
      }
    }
    if (lane == 0) hits[row] = position < classes && position == targets[row] ? 1 : 0;
  }
}

__global__ void __launch_bounds__(1024)
    fold_hits(std::int64_t rows, const std::int32_t* hits, std::int64_t* correct) {
  __shared__ long long shared[32];
  long long sum = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += 1024) sum += hits[row];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) *correct = sum;
}

unsigned block_a_row(std::int64_t rows, const Launch& on) { return grid_for(rows * block, block, on); }

template <class Op>
LossRows rows_of(const Op& op) {
  const std::int64_t columns = op.logits.size(1);
  std::int64_t classes = columns;
  if constexpr (requires { op.classes; }) classes = op.classes > 0 ? op.classes : columns;
  return {op.logits.size(0), classes, columns, op.options.ignore_index, op.options.label_smoothing};
}

/// The losses of rows, in one launch, and their sums. log_sum_exp: null if the logits become gradients.
template <bool gradients, class Op>
void sum_losses(CudaBackend& gpu, const Op& op, float* log_sum_exp, int parts) {
  const Launch on = gpu.launch();
  const LossRows sizes = rows_of(op);
  const std::int64_t* const targets = op.targets.template data<std::int64_t>();
  check_data(on, op.targets, sizes.classes, &op.options.ignore_index, DataFault::target_outside,
             ops::CrossEntropy::name, gpu.fault(), parts);
  const Tensor scratch = gpu.scratch(parts * sizes.rows, DType::float64);
  double* const losses = scratch.data<double>();
  by_type_of(op.logits, [&]<class T>(T) {
    if (sizes.rows == 0) return;
    T* const x = op.logits.template data<T>();
    const dim3 grid = for_parts(block_a_row(sizes.rows, on), parts);
    const bool packs =
        packs_at(x) && (parts == 1 || sizes.rows * sizes.columns % pack_width<T> == 0);  // in every part
    const auto run = [&](auto* kernel, int threads) {
      kernel<<<grid, threads, 0, on.stream>>>(sizes, x, targets, log_sum_exp, losses);
    };
    if (sizes.classes < long_row) {
      run(packs ? forward<block, gradients, true, T> : forward<block, gradients, false, T>, block);
    } else {
      run(packs ? forward<large_block, gradients, true, T> : forward<large_block, gradients, false, T>,
          large_block);
    }
  });
  fold_rows<<<for_parts(1, parts), 1024, 0, on.stream>>>(sizes, targets, losses,
                                                         op.total.template data<double>());
}

void cross_entropy(CudaBackend& gpu, const ops::CrossEntropy& op, int parts) {
  sum_losses<false>(gpu, op, op.log_sum_exp.data<float>(), parts);
}

void cross_entropy_in_place(CudaBackend& gpu, const ops::CrossEntropyInPlace& op, int parts) {
  sum_losses<true>(gpu, op, nullptr, parts);
}

void scale_unless_one(CudaBackend& gpu, const ops::ScaleUnlessOne& op, int parts) {
  const Launch on = gpu.launch();
  const std::int64_t count = op.x.numel();
  if (count == 0) return;
  by_type_of(op.x, [&]<class T>(T) {
    scale_by<<<for_parts(grid_for(count, block, on), parts), block, 0, on.stream>>>(
        count, op.factor.data<float>(), op.x.data<T>());
  });
}

void cross_entropy_backward(CudaBackend& gpu, const ops::CrossEntropyBackward& op, int parts) {
  const Launch on = gpu.launch();
  const LossRows sizes = rows_of(op);
  if (op.logits.numel() == 0) return;
  by_type_of(op.logits, [&]<class T>(T) {
    const T* const x = op.logits.data<T>();
    T* const dx = op.dlogits.data<T>();
    const std::int64_t* const targets = op.targets.data<std::int64_t>();
    const float *const log_sum_exp = op.log_sum_exp.data<float>(), *const factor = op.factor.data<float>();
    const dim3 grid = for_parts(block_a_row(sizes.rows, on), parts);
    const bool packs = packs_at(x) && packs_at(dx) && sizes.classes % pack_width<T> == 0;
    with_width<T>(packs, [&]<int width>(Width<width>) {
      backward<width><<<grid, block, 0, on.stream>>>(sizes, x, targets, log_sum_exp, factor, dx);
    });
  });
}

void count_correct(CudaBackend& gpu, const ops::CountCorrect& op) {
  const Launch on = gpu.launch();
  const std::int64_t rows = op.logits.size(0);
  const Tensor scratch = gpu.scratch(rows, DType::int32);
  std::int32_t* const hits = scratch.data<std::int32_t>();
  by_type_of(op.logits, [&]<class T>(T) {
    if (rows > 0)
      find_hits<<<grid_for(rows * 32, block, on), block, 0, on.stream>>>(
          rows, op.logits.size(1), op.logits.data<T>(), op.targets.data<std::int64_t>(), hits);
  });
  fold_hits<<<1, 1024, 0, on.stream>>>(rows, hits, op.correct.data<std::int64_t>());
}

/// Runs in one thread for all parts, because kernels write `fault` one after another.
__global__ void combine(int parts, double factor, const double* a, const double* b, double* total,
                        DataFault* fault) {
  for (int at = 0; at < 2 * parts; at += 2) {
    const double sum = a[at], count = a[at + 1];
    if (b && b[at + 1] != count && fault->kind == DataFault::none) {
      fault->value = static_cast<std::int64_t>(count);
      fault->bound = static_cast<std::int64_t>(b[at + 1]);
      fault->kind = DataFault::counts_differ;
    }
    total[at] = factor * sum + (b ? b[at] : 0.0);
    total[at + 1] = count;
  }
}

void combine_totals(CudaBackend& gpu, const ops::CombineTotals& op, int parts) {
  combine<<<1, 1, 0, gpu.launch().stream>>>(parts, op.factor, op.a.data<double>(),
                                            op.b ? op.b.data<double>() : nullptr, op.total.data<double>(),
                                            gpu.fault());
}

}  // namespace

void enter_loss(CudaBackend& gpu) {
  gpu.enter<&count_correct>();
  gpu.enter_at_once<&cross_entropy, &cross_entropy_in_place, &scale_unless_one, &cross_entropy_backward,
                    &combine_totals>();
}

}  // namespace lockstep::kernels
