// Sums of gradients: one node of the reduction tree, and the norm's float64 blocks.
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/update.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 16384, block_elements = ops::BlockSumsOfSquares::block_elements;

template <class T, class From>
void add_into(int threads, std::int64_t count, T* into, const From* x) {
  parallel_ranges(threads, count, elements_per_thread, [=](std::int64_t begin, std::int64_t end) {
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) into[i] += static_cast<T>(x[i]);
  });
}

/// In 16 lanes of float64; the square of a float32 is exact there.
double sum_of_squares(const float* x, std::int64_t count) {
  Doubles lanes[4] = {};
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (int group = 0; group < 4; ++group) {
      Doubles v;
      for (int lane = 0; lane < 4; ++lane) v[lane] = x[i + 4 * group + lane];
      lanes[group] += v * v;
    }
  }
  double sum = sum_of((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]));
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
  const float* from = op.x.data<float>();
  const std::int64_t count = op.x.numel(), needed = op.blocks.numel();
  if (needed == 0) return;
  double* to = op.blocks.data<double>();
  parallel_items(cpu.threads(), needed, elements_per_thread / block_elements, [=](std::int64_t block) {
    const std::int64_t first = block * block_elements;
    to[block] = sum_of_squares(from + first, std::min(block_elements, count - first));
  });
}

void enter_reduction(CpuBackend& cpu) { cpu.enter<&accumulate, &block_sums_of_squares>(); }

}  // namespace lockstep::kernels
