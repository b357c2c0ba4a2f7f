// Layer norm: a warp a row. A row of up to 1024 (bf16: 2048) elements is read once and stays in registers.
#include "kernels/cuda/column_sums.cuh"
#include "lockstep/ops/norm.h"

namespace lockstep::kernels {
namespace {

constexpr int warps = 4;

/// This warp's rows: body(row).
template <class Body>
__device__ void for_rows_of_warp(std::int64_t rows, const Body& body) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * warps;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / 32; row < rows;
       row += stride)
    body(row);
}

/// The packs of a row that a lane holds: numbers lane, lane + 32 ... ; element i of the row is in pack
/// i / Width. Width divides the row's width.
template <int Packs, int Width, class T>
struct HeldRow {
  float value[Packs][Width];

  __device__ void load(const T* row, std::int64_t width) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
      const std::int64_t at = (static_cast<std::int64_t>(p) * 32 + lane) * Width;
      if (at >= width) continue;
      const Pack<T, Width> pack = load_pack<T, Width>(row + at);
      for (int i = 0; i < Width; ++i) value[p][i] = to_float(pack.lane[i]);
    }
  }

  /// Adds another row, and writes the sums: as they are stored, they are the values.
  __device__ void add(const T* row, T* sums, std::int64_t width) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
      const std::int64_t at = (static_cast<std::int64_t>(p) * 32 + lane) * Width;
      if (at >= width) continue;
      Pack<T, Width> pack = load_pack<T, Width>(row + at);
      for (int i = 0; i < Width; ++i) {
        pack.lane[i] = rounded<T>(value[p][i] + to_float(pack.lane[i]));
        value[p][i] = to_float(pack.lane[i]);
      }
      store_pack(sums + at, pack);
    }
  }

  /// f(element of the row, its value)
  template <class Function>
  __device__ void each(std::int64_t width, const Function& f) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
      const std::int64_t at = (static_cast<std::int64_t>(p) * 32 + lane) * Width;
      if (at >= width) continue;
#pragma unroll
      for (int i = 0; i < Width; ++i) f(at + i, value[p][i]);
    }
  }
};

struct Forward {
  const float *weight, *bias;
  float eps;
  float *mean, *inv_std;
};

template <int Packs, int Width, class T>
__global__ void __launch_bounds__(32 * warps)
    normalise_held(std::int64_t rows, std::int64_t width, const T* x, const T* addend, T* sums, Forward with,
                   T* y) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for_rows_of_warp(rows, [&](std::int64_t row) {
    HeldRow<Packs, Width, T> held;
    held.load(x + row * width, width);
    if (addend) held.add(addend + row * width, sums + row * width, width);
    float sum = 0;
    held.each(width, [&](std::int64_t, float v) { sum += v; });
    const float centre = warp_sum(sum) / static_cast<float>(width);
    float squares = 0;
    held.each(width, [&](std::int64_t, float v) { squares += (v - centre) * (v - centre); });
    const float inverse = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(width) + with.eps);
    if (lane == 0) {
      with.mean[row] = centre;
      with.inv_std[row] = inverse;
    }
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
      const std::int64_t at = (static_cast<std::int64_t>(p) * 32 + lane) * Width;
      if (at >= width) continue;
      Pack<T, Width> out;
      for (int i = 0; i < Width; ++i)
        out.lane[i] =
            rounded<T>(fmaf((held.value[p][i] - centre) * inverse, with.weight[at + i], with.bias[at + i]));
      store_pack(y + row * width + at, out);
    }
  });
}

/// For rows too long to hold, or not made of packs: read three times.
template <class T>
__global__ void __launch_bounds__(32 * warps) normalise(std::int64_t rows, std::int64_t width, const T* x,
                                                        const T* addend, T* sums, Forward with, T* y) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for_rows_of_warp(rows, [&](std::int64_t row) {
    const T* from = x + row * width;
    if (addend) {  // a lane reads only what it wrote itself
      for (std::int64_t i = lane; i < width; i += 32)
        sums[row * width + i] = rounded<T>(to_float(from[i]) + to_float(addend[row * width + i]));
      from = sums + row * width;
    }
    float sum = 0;
    for (std::int64_t i = lane; i < width; i += 32) sum += to_float(from[i]);
    const float centre = warp_sum(sum) / static_cast<float>(width);
    float squares = 0;
    for (std::int64_t i = lane; i < width; i += 32)
      squares += (to_float(from[i]) - centre) * (to_float(from[i]) - centre);
    const float inverse = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(width) + with.eps);
    if (lane == 0) {
      with.mean[row] = centre;
      with.inv_std[row] = inverse;
    }
    for (std::int64_t i = lane; i < width; i += 32)
      y[row * width + i] =
          rounded<T>(fmaf((to_float(from[i]) - centre) * inverse, with.weight[i], with.bias[i]));
  });
}

struct Backward {
  const float *weight, *mean, *inv_std;
};

template <int Packs, int Width, class T>
__global__ void __launch_bounds__(32 * warps)
    input_gradient_held(std::int64_t rows, std::int64_t width, const T* dy, const T* x, Backward with,
                        const T* beside, T* dx) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for_rows_of_warp(rows, [&](std::int64_t row) {
    const float centre = with.mean[row], inverse = with.inv_std[row];
    HeldRow<Packs, Width, T> upstream, normal;
    upstream.load(dy + row * width, width);
    normal.load(x + row * width, width);
    float sum_g = 0, sum_gx = 0;
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
      const std::int64_t at = (static_cast<std::int64_t>(p) * 32 + lane) * Width;
      if (at >= width) continue;
#pragma unroll
      for (int i = 0; i < Width; ++i) {
        normal.value[p][i] = (normal.value[p][i] - centre) * inverse;
        upstream.value[p][i] *= with.weight[at + i];
        sum_g += upstream.value[p][i];
        sum_gx += upstream.value[p][i] * normal.value[p][i];
      }
    }
    const float mean_g = warp_sum(sum_g) / static_cast<float>(width);
    const float mean_gx = warp_sum(sum_gx) / static_cast<float>(width);
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
      const std::int64_t at = (static_cast<std::int64_t>(p) * 32 + lane) * Width;
      if (at >= width) continue;
      Pack<T, Width> out;
      if (beside) out = load_pack<T, Width>(beside + row * width + at);
      for (int i = 0; i < Width; ++i) {
        const float own = inverse * (upstream.value[p][i] - mean_g - normal.value[p][i] * mean_gx);
        out.lane[i] = rounded<T>(beside ? to_float(out.lane[i]) + own : own);
      }
      store_pack(dx + row * width + at, out);
    }
  });
}

template <class T>
__global__ void __launch_bounds__(32 * warps)
    input_gradient(std::int64_t rows, std::int64_t width, const T* dy, const T* x, Backward with,
                   const T* beside, T* dx) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for_rows_of_warp(rows, [&](std::int64_t row) {
    const float centre = with.mean[row], inverse = with.inv_std[row];
    const T *upstream = dy + row * width, *from = x + row * width;
    float sum_g = 0, sum_gx = 0;
    for (std::int64_t i = lane; i < width; i += 32) {
      const float g = to_float(upstream[i]) * with.weight[i];
      sum_g += g;
      sum_gx += g * ((to_float(from[i]) - centre) * inverse);
    }
    const float mean_g = warp_sum(sum_g) / static_cast<float>(width);
    const float mean_gx = warp_sum(sum_gx) / static_cast<float>(width);
    for (std::int64_t i = lane; i < width; i += 32) {
      const float normal = (to_float(from[i]) - centre) * inverse;
      const float own = inverse * (to_float(upstream[i]) * with.weight[i] - mean_g - normal * mean_gx);
      dx[row * width + i] = rounded<T>(beside ? to_float(beside[row * width + i]) + own : own);
    }
  });
}

/// Of dweight and of dbias.
template <class T>
struct ParameterTerms {
  const T *dy, *x;
  const float *mean, *inv_std;
  std::int64_t width;
  __device__ void operator()(std::int64_t row, std::int64_t column, float* totals) const {
    const float upstream = to_float(dy[row * width + column]);
    totals[0] += upstream * ((to_float(x[row * width + column]) - mean[row]) * inv_std[row]);
    totals[1] += upstream;
  }
};

/// held(packs a lane) with the smallest number that holds a row, or unheld().
template <class T, class Held, class Unheld>
void choose(std::int64_t width, bool aligned, const Held& held, const Unheld& unheld) {
  const std::int64_t packs = ceil_div(width, 32 * pack_width<T>);
  if (!aligned || width % pack_width<T> != 0 || packs > 8) return unheld();
  if (packs <= 2) return held(std::integral_constant<int, 2>{});
  if (packs <= 4) return held(std::integral_constant<int, 4>{});
  held(std::integral_constant<int, 8>{});
}

unsigned row_blocks(std::int64_t rows, const Launch& on) { return grid_for(rows * 32, 32 * warps, on); }

void layer_norm(CudaBackend& gpu, const ops::LayerNorm& op) {
  const auto [rows, width] = ops::rows_of(op.name, op.x);
  if (rows == 0 || width == 0) return;
  const Launch on = gpu.launch();
  const Forward with{op.weight.data<float>(), op.bias.data<float>(), op.eps, op.mean.data<float>(),
                     op.inv_std.data<float>()};
  by_type_of(op.x, [&, count = rows, columns = width]<class T>(T) {
    const T *const from = op.x.data<T>(), *const added = data_or_null<T>(op.addend);
    T *const to = op.y.data<T>(), *const sums = data_or_null<T>(op.sum);
    const unsigned grid = row_blocks(count, on);
    choose<T>(
        columns, packs_at(from) && packs_at(added) && packs_at(sums) && packs_at(to),
        [&]<int Packs>(std::integral_constant<int, Packs>) {
          normalise_held<Packs, pack_width<T>>
              <<<grid, 32 * warps, 0, on.stream>>>(count, columns, from, added, sums, with, to);
        },
        [&] { normalise<<<grid, 32 * warps, 0, on.stream>>>(count, columns, from, added, sums, with, to); });
  });
}

void layer_norm_backward(CudaBackend& gpu, const ops::LayerNormBackward& op) {
  const ops::Rows rows = ops::rows_of(op.name, op.x);
  const Launch on = gpu.launch();
  const Backward with{op.weight.data<float>(), op.mean.data<float>(), op.inv_std.data<float>()};
  by_type_of(op.x, [&]<class T>(T) {
    const T *const dy = op.dy.data<T>(), *const x = op.x.data<T>(),
                   *const beside = data_or_null<T>(op.beside);
    T* const dx = op.dx.data<T>();
    // First the parameters' part: dx may be what dy was.
    sum_columns<2, float>(
        gpu, rows.count, rows.width, ParameterTerms<T>{dy, x, with.mean, with.inv_std, rows.width},
        IntoGradients<2>{{op.dweight.data<float>(), op.dbias.data<float>()}, op.accumulate});
    if (rows.count == 0 || rows.width == 0) return;
    const unsigned grid = row_blocks(rows.count, on);
    choose<T>(
        rows.width, packs_at(dy) && packs_at(x) && packs_at(beside) && packs_at(dx),
        [&]<int Packs>(std::integral_constant<int, Packs>) {
          input_gradient_held<Packs, pack_width<T>>
              <<<grid, 32 * warps, 0, on.stream>>>(rows.count, rows.width, dy, x, with, beside, dx);
        },
        [&] {
          input_gradient<<<grid, 32 * warps, 0, on.stream>>>(rows.count, rows.width, dy, x, with, beside, dx);
        });
  });
}

}  // namespace

void enter_layer_norm(CudaBackend& gpu) { gpu.enter<&layer_norm, &layer_norm_backward>(); }

}  // namespace lockstep::kernels
