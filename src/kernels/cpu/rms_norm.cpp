// RMS norm over the last dimension (Zhang, Sennrich, 2019).
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/norm.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 8192;
constexpr std::int64_t rows_per_block = 64;  // the weight's gradient is summed in blocks of rows

std::int64_t rows_per_thread(std::int64_t width) {
  return elements_per_thread / std::max<std::int64_t>(1, width);
}

}  // namespace

void rms_norm(CpuBackend& cpu, const ops::RmsNorm& op) {
  const ops::Rows rows = ops::rows_of(op.name, op.x);
  const std::int64_t width = rows.width;
  const float *from = op.x.data<float>(), *w = op.weight.data<float>();
  float *to = op.y.data<float>(), *inverses = op.inv_rms.data<float>();
  if (width == 0) return;
  parallel_items(cpu.threads(), rows.count, rows_per_thread(width), [=, eps = op.eps](std::int64_t row) {
    const float* const x = from + row * width;
    float* const y = to + row * width;
    const float inverse = 1.0f / std::sqrt(dot(x, x, width) / static_cast<float>(width) + eps);
    inverses[row] = inverse;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < width; ++i) y[i] = (x[i] * inverse) * w[i];
  });
}

void rms_norm_backward(CpuBackend& cpu, const ops::RmsNormBackward& op) {
  const ops::Rows rows = ops::rows_of(op.name, op.x);
  const std::int64_t count = rows.count, width = rows.width;
  const float *dys = op.dy.data<float>(), *xs = op.x.data<float>(), *w = op.weight.data<float>(),
              *inverses = op.inv_rms.data<float>();
  const float* const added = op.beside ? op.beside.data<float>() : nullptr;
  float* const to = op.dx.data<float>();
  if (width == 0) return;
  const std::int64_t blocks = (count + rows_per_block - 1) / rows_per_block;
  const Tensor partial = cpu.empty({op.dweight ? blocks : 0, width});
  float* const sums = op.dweight ? partial.data<float>() : nullptr;
  parallel_items(cpu.threads(), blocks, rows_per_thread(width) / rows_per_block, [=](std::int64_t block) {
    if (sums) std::fill_n(sums + block * width, width, 0.0f);
    for (std::int64_t row = block * rows_per_block; row < std::min(count, (block + 1) * rows_per_block);
         ++row) {
      const float *const dy = dys + row * width, *const x = xs + row * width, inverse = inverses[row];
      const float mean =  // of the gradient of x / rms times x / rms
          lane_sum(width, [=](const auto& load) { return load(dy) * load(w) * (load(x) * inverse); }) /
          static_cast<float>(width);
      if (sums) {
        float* const sum = sums + block * width;
#pragma GCC ivdep
        for (std::int64_t i = 0; i < width; ++i) sum[i] += dy[i] * (x[i] * inverse);
      }
      const float* const beside = added ? added + row * width : nullptr;
      float* const dx = to + row * width;
#pragma GCC ivdep
      for (std::int64_t i = 0; i < width; ++i) {
        const float own = inverse * (dy[i] * w[i] - (x[i] * inverse) * mean);
        dx[i] = beside ? beside[i] + own : own;
      }
    }
  });
  if (op.dweight) cpu.run(ops::SumRows{partial, op.dweight, op.accumulate});
}

void enter_rms_norm(CpuBackend& cpu) {
  cpu.enter<&rms_norm>(Computes::in_float32, 1);
  cpu.enter<&rms_norm_backward>(Computes::in_float32, rows_per_block);
}

}  // namespace lockstep::kernels
