// RMS norm: a warp a row, which it reads twice: the second time from a cache.
#include "kernels/cuda/column_sums.cuh"
#include "lockstep/ops/norm.h"

namespace lockstep::kernels {
namespace {

constexpr int block = 128;

/// body(first element of each pack of a row that is this lane's)
template <int Width, class Body>
__device__ void for_packs(std::int64_t width, const Body& body) {
  for (std::int64_t at = static_cast<std::int64_t>(threadIdx.x % 32) * Width; at < width; at += 32 * Width)
    body(at);
}

template <int Width, class T>
__global__ void __launch_bounds__(block) normalise(std::int64_t rows, std::int64_t width, const T* xs,
                                                   const float* weight, float eps, T* ys, float* inv_rms) {
  for (std::int64_t row = global_thread() / 32; row < rows; row += global_threads() / 32) {
    const T* const x = xs + row * width;
    float squares = 0;
    for_packs<Width>(width, [&](std::int64_t at) {
      const Pack<T, Width> pack = load_pack<T, Width>(x + at);
      for (int i = 0; i < Width; ++i) squares += to_float(pack.lane[i]) * to_float(pack.lane[i]);
    });
    const float inverse = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(width) + eps);
    if (threadIdx.x % 32 == 0) inv_rms[row] = inverse;
    for_packs<Width>(width, [&](std::int64_t at) {
      Pack<T, Width> pack = load_pack<T, Width>(x + at);
      for (int i = 0; i < Width; ++i)
        pack.lane[i] = rounded<T>(to_float(pack.lane[i]) * inverse * weight[at + i]);
      store_pack(ys + row * width + at, pack);
    });
  }
}

template <int Width, class T>
__global__ void __launch_bounds__(block)
    input_gradient(std::int64_t rows, std::int64_t width, const T* dys, const T* xs, const float* weight,
                   const float* inv_rms, const T* beside, T* dxs) {
  for (std::int64_t row = global_thread() / 32; row < rows; row += global_threads() / 32) {
    const T *const dy = dys + row * width, *const x = xs + row * width;
    const float inverse = inv_rms[row];
    float sum = 0;  // of the gradient of x / rms times x / rms
    for_packs<Width>(width, [&](std::int64_t at) {
      const Pack<T, Width> upstream = load_pack<T, Width>(dy + at), given = load_pack<T, Width>(x + at);
      for (int i = 0; i < Width; ++i)
        sum += to_float(upstream.lane[i]) * weight[at + i] * (to_float(given.lane[i]) * inverse);
    });
    const float mean = warp_sum(sum) / static_cast<float>(width);
    for_packs<Width>(width, [&](std::int64_t at) {
      const Pack<T, Width> upstream = load_pack<T, Width>(dy + at), given = load_pack<T, Width>(x + at);
      Pack<T, Width> out;
      if (beside) out = load_pack<T, Width>(beside + row * width + at);
      for (int i = 0; i < Width; ++i) {
        const float own = inverse * (to_float(upstream.lane[i]) * weight[at + i] -
                                     to_float(given.lane[i]) * inverse * mean);
        out.lane[i] = rounded<T>(beside ? to_float(out.lane[i]) + own : own);
      }
      store_pack(dxs + row * width + at, out);
    });
  }
}

template <class T>
struct WeightTerms {
  const T *dy, *x;
  const float* inv_rms;
  std::int64_t width;
  __device__ void operator()(std::int64_t row, std::int64_t column, float* totals) const {
    const std::int64_t at = row * width + column;
    totals[0] += to_float(dy[at]) * (to_float(x[at]) * inv_rms[row]);
  }
};

void rms_norm(CudaBackend& gpu, const ops::RmsNorm& op) {
  const ops::Rows rows = ops::rows_of(op.name, op.x);
  if (rows.count == 0 || rows.width == 0) return;
  const Launch on = gpu.launch();
  const float* const weight = op.weight.data<float>();
  float* const inv_rms = op.inv_rms.data<float>();
  by_type_of(op.x, [&]<class T>(T) {
    const T* const x = op.x.data<T>();
    T* const y = op.y.data<T>();
    const bool packs = rows.width % pack_width<T> == 0 && packs_at(x) && packs_at(y);
    with_width<T>(packs, [&]<int width>(Width<width>) {
      normalise<width><<<grid_for(rows.count * 32, block, on), block, 0, on.stream>>>(
          rows.count, rows.width, x, weight, op.eps, y, inv_rms);
    });
  });
}

void rms_norm_backward(CudaBackend& gpu, const ops::RmsNormBackward& op) {
  const ops::Rows rows = ops::rows_of(op.name, op.x);
  const Launch on = gpu.launch();
  const float *const weight = op.weight.data<float>(), *const inv_rms = op.inv_rms.data<float>();
  by_type_of(op.x, [&]<class T>(T) {
    const T *const dy = op.dy.data<T>(), *const x = op.x.data<T>(),
                   *const beside = data_or_null<T>(op.beside);
    T* const dx = op.dx.data<T>();
    if (op.dweight)
      sum_columns<1, float>(gpu, rows.count, rows.width, WeightTerms<T>{dy, x, inv_rms, rows.width},
                            IntoGradients<1>{{op.dweight.data<float>()}, op.accumulate});
    if (rows.count == 0 || rows.width == 0) return;
    const bool packs =
        rows.width % pack_width<T> == 0 && packs_at(dy) && packs_at(x) && packs_at(beside) && packs_at(dx);
    with_width<T>(packs, [&]<int width>(Width<width>) {
      input_gradient<width><<<grid_for(rows.count * 32, block, on), block, 0, on.stream>>>(
          rows.count, rows.width, dy, x, weight, inv_rms, beside, dx);
    });
  });
}

}  // namespace

void enter_rms_norm(CudaBackend& gpu) { gpu.enter<&rms_norm, &rms_norm_backward>(); }

}  // namespace lockstep::kernels
