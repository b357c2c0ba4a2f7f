// Losses. Cross-entropy reads the logits once forward and once backward, in their own type; sums over rows
// run in float64 and in an order that depends on their number alone.
#include "lockstep/ops/loss.h"

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/kernels.h"

namespace lockstep::kernels {
namespace {

constexpr int block = 256;

struct LossRows {
  std::int64_t rows, classes, ignore_index;
  float label_smoothing;
};

/// The largest of some numbers, and the sum of e^(number - largest). A NaN makes the sum NaN.
struct Exponentials {
  float most, sum;
};

__device__ Exponentials joined(const Exponentials& a, const Exponentials& b) {
  const float most = fmaxf(a.most, b.most);
  if (most == -INFINITY) return {most, a.sum + b.sum};  // nothing yet, or only NaNs
  const float left = a.most == -INFINITY ? a.sum : a.sum * expf(a.most - most);
  const float right = b.most == -INFINITY ? b.sum : b.sum * expf(b.most - most);
  return {most, left + right};
}

__device__ Exponentials with(const Exponentials& so_far, float x) {
  if (x > so_far.most) {
    const float kept = so_far.most == -INFINITY ? so_far.sum : so_far.sum * expf(so_far.most - x);
    return {x, kept + 1.0f};
  }
  if (so_far.most == -INFINITY) return {so_far.most, so_far.sum + (x != x ? x : 0.0f)};
  return {so_far.most, so_far.sum + expf(x - so_far.most)};
}

/// A class's index that is counted.
__device__ bool counts(std::int64_t target, const LossRows& sizes) {
  return target != sizes.ignore_index && target >= 0 && target < sizes.classes;
}

/// f(x) for each element of a row of this thread's share, in packs where Width > 1 and the row begins at one.
template <int Width, class T, class Function>
__device__ void each_of_row(const T* row, std::int64_t classes, const Function& f) {
  const std::int64_t packs = classes / Width;
  for (std::int64_t i = threadIdx.x; i < packs; i += block) {
    const Pack<T, Width> in = load_pack<T, Width>(row + i * Width);
    for (int lane = 0; lane < Width; ++lane) f(to_float(in.lane[lane]));
  }
  for (std::int64_t i = packs * Width + threadIdx.x; i < classes; i += block) f(to_float(row[i]));
}

/// A block a row.
template <int Width, class T>
__global__ void __launch_bounds__(block) forward(LossRows sizes, const T* logits, const std::int64_t* targets,
                                                 float* log_sum_exp, double* losses) {
  __shared__ float shared_most[32], shared_sum[32];
  __shared__ double shared_double[32];
  for (std::int64_t row = blockIdx.x; row < sizes.rows; row += gridDim.x) {
    const std::int64_t target = targets[row];
    if (!counts(target, sizes)) {  // the same for every thread of the block
      if (threadIdx.x == 0) {
        log_sum_exp[row] = 0;
        losses[row] = 0;
      }
      continue;
    }
    const T* x = logits + row * sizes.classes;
    Exponentials mine{-INFINITY, 0};
    double plain_sum = 0;
    const bool smooth = sizes.label_smoothing > 0;
    each_of_row<Width>(x, sizes.classes, [&](float value) {
      mine = with(mine, value);
      if (smooth) plain_sum += static_cast<double>(value);
    });
    for (int offset = 16; offset > 0; offset /= 2) {
      mine = joined(mine, {__shfl_xor_sync(0xffffffffu, mine.most, offset),
                           __shfl_xor_sync(0xffffffffu, mine.sum, offset)});
    }
    if (threadIdx.x % 32 == 0) {
      shared_most[threadIdx.x / 32] = mine.most;
      shared_sum[threadIdx.x / 32] = mine.sum;
    }
    __syncthreads();
    if (smooth) plain_sum = block_sum(plain_sum, shared_double);
    if (threadIdx.x == 0) {
      Exponentials all{shared_most[0], shared_sum[0]};
      for (int warp = 1; warp < block / 32; ++warp) all = joined(all, {shared_most[warp], shared_sum[warp]});
      const double log = static_cast<double>(all.most) + ::log(static_cast<double>(all.sum));
      const double smoothing = static_cast<double>(sizes.label_smoothing);
      double loss = (1 - smoothing) * (log - static_cast<double>(to_float(x[target])));
      if (smooth) loss += smoothing * (log - plain_sum / static_cast<double>(sizes.classes));
      log_sum_exp[row] = static_cast<float>(log);
      losses[row] = loss;
    }
    __syncthreads();  // the shared memory is free again
  }
}

/// total = {sum of losses, rows that count}: one block.
__global__ void __launch_bounds__(1024)
    fold_rows(LossRows sizes, const std::int64_t* targets, const double* losses, double* total) {
  __shared__ double shared[32];
  double sum = 0, counted = 0;
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

/// dlogits = factor * (e^(x - log) - spread), and at the target less 1 - smoothing. May be the logits.
template <int Width, class T>
__global__ void __launch_bounds__(block)
    backward(LossRows sizes, const T* logits, const std::int64_t* targets, const float* log_sum_exp,
             const float* factor, T* dlogits) {
  const float by = *factor;
  const float spread = sizes.label_smoothing / static_cast<float>(sizes.classes);
  const float wanted = 1.0f - sizes.label_smoothing;
  const std::int64_t packs = sizes.classes / Width;
  for (std::int64_t row = blockIdx.x; row < sizes.rows; row += gridDim.x) {
    const std::int64_t target = targets[row];
    const bool counted = counts(target, sizes);
    const float log = log_sum_exp[row];
    const T* x = logits + row * sizes.classes;
    T* d = dlogits + row * sizes.classes;
    const auto gradient = [&](std::int64_t c, float value) {
      if (!counted) return 0.0f;
      const float off = expf(value - log) - spread;
      return by * (c == target ? off - wanted : off);
    };
    for (std::int64_t i = threadIdx.x; i < packs; i += block) {
      const Pack<T, Width> in = load_pack<T, Width>(x + i * Width);
      Pack<T, Width> out;
      for (int lane = 0; lane < Width; ++lane)
        out.lane[lane] = rounded<T>(gradient(i * Width + lane, to_float(in.lane[lane])));
      store_pack(d + i * Width, out);
    }
    for (std::int64_t c = packs * Width + threadIdx.x; c < sizes.classes; c += block)
      d[c] = rounded<T>(gradient(c, to_float(x[c])));
  }
}

/// hits[row] = 1 where the first of the largest logits is the target. A warp a row.
template <class T>
__global__ void __launch_bounds__(block) find_hits(std::int64_t rows, std::int64_t classes, const T* logits,
                                                   const std::int64_t* targets, std::int32_t* hits) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (std::int64_t row = global_thread() / 32; row < rows; row += global_threads() / 32) {
    const T* x = logits + row * classes;
    float most = -INFINITY;
    std::int64_t position = classes;  // none yet
    for (std::int64_t c = lane; c < classes; c += 32) {
      const float value = to_float(x[c]);
      if (value > most || (position == classes && value == most)) {
        most = value;
        position = c;
      }
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, most, offset);
      const auto other_position =
          static_cast<std::int64_t>(__shfl_xor_sync(0xffffffffu, static_cast<long long>(position), offset));
      if (other > most || (other == most && other_position < position)) {
        most = other;
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
  return {op.logits.size(0), op.logits.size(1), op.options.ignore_index, op.options.label_smoothing};
}

void cross_entropy(CudaBackend& gpu, const ops::CrossEntropy& op) {
  const Launch on = gpu.launch();
  const LossRows sizes = rows_of(op);
  const std::int64_t* const targets = op.targets.data<std::int64_t>();
  check_data(on, op.targets, sizes.classes, &op.options.ignore_index, DataFault::target_outside, op.name,
             gpu.fault());
  const Tensor scratch = gpu.scratch(sizes.rows, DType::float64);
  double* const losses = scratch.data<double>();
  by_type_of(op.logits, [&]<class T>(T) {
    if (sizes.rows == 0) return;
    const T* const x = op.logits.data<T>();
    float* const log_sum_exp = op.log_sum_exp.data<float>();
    const unsigned grid = block_a_row(sizes.rows, on);
    with_width<T>(packs_at(x) && sizes.classes % pack_width<T> == 0, [&]<int width>(Width<width>) {
      forward<width><<<grid, block, 0, on.stream>>>(sizes, x, targets, log_sum_exp, losses);
    });
  });
  fold_rows<<<1, 1024, 0, on.stream>>>(sizes, targets, losses, op.total.data<double>());
}

void cross_entropy_backward(CudaBackend& gpu, const ops::CrossEntropyBackward& op) {
  const Launch on = gpu.launch();
  const LossRows sizes = rows_of(op);
  if (op.logits.numel() == 0) return;
  by_type_of(op.logits, [&]<class T>(T) {
    const T* const x = op.logits.data<T>();
    T* const dx = op.dlogits.data<T>();
    const std::int64_t* const targets = op.targets.data<std::int64_t>();
    const float *const log_sum_exp = op.log_sum_exp.data<float>(), *const factor = op.factor.data<float>();
    const unsigned grid = block_a_row(sizes.rows, on);
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

/// One thread, one after another: also of `fault`.
__global__ void combine(double factor, const double* a, const double* b, double* total, DataFault* fault) {
  const double sum = a[0], count = a[1];
  if (b && b[1] != count && fault->kind == DataFault::none) {
    fault->value = static_cast<std::int64_t>(count);
    fault->bound = static_cast<std::int64_t>(b[1]);
    fault->kind = DataFault::counts_differ;
  }
  total[0] = factor * sum + (b ? b[0] : 0.0);
  total[1] = count;
}

void combine_totals(CudaBackend& gpu, const ops::CombineTotals& op) {
  combine<<<1, 1, 0, gpu.launch().stream>>>(op.factor, op.a.data<double>(),
                                            op.b ? op.b.data<double>() : nullptr, op.total.data<double>(),
                                            gpu.fault());
}

}  // namespace

void enter_loss(CudaBackend& gpu) {
  gpu.enter<&cross_entropy, &cross_entropy_backward, &count_correct, &combine_totals>();
}

}  // namespace lockstep::kernels
