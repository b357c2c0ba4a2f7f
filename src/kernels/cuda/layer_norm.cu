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

/// What a lane has of a row: the packs of W elements numbered lane, lane + 32 ..., as make(first element)
/// gives them. They are kept where there are at most `Packs`; 0: they are made again each time. W divides the
/// row's width.
template <int Packs, int W, class Make>
class Row {
 public:
  __device__ Row(std::int64_t width, const Make& make) : width_(width), make_(make) {
    if constexpr (Packs > 0) each_kept([&](std::int64_t at, Values& values) { values = make(at); });
  }
  /// f(first element, values)
  template <class Function>
  __device__ void each(const Function& f) {
    if constexpr (Packs > 0) {
      each_kept(f);
    } else {
      for (std::int64_t at = threadIdx.x % 32 * W; at < width_; at += 32 * W) f(at, make_(at));
    }
  }

 private:
  using Values = decltype(std::declval<const Make&>()(std::int64_t{}));

  template <class Function>
  __device__ void each_kept(const Function& f) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
      const std::int64_t at = (static_cast<std::int64_t>(p) * 32 + lane) * W;
      if (at < width_) f(at, kept_[p]);
    }
  }

  std::int64_t width_;
  const Make& make_;
  Values kept_[Packs > 0 ? Packs : 1];
};

struct Forward {
  const float *weight, *bias;
  float eps;
  float *mean, *inv_std;
};

template <int Packs, int W, class T>
__global__ void __launch_bounds__(32 * warps) normalise(std::int64_t rows, std::int64_t width, const T* x,
                                                        const T* addend, T* sums, Forward with, T* y) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for_rows_of_warp(rows, [&](std::int64_t row) {
    const std::int64_t first = row * width;
    const T* from = x + first;
    const auto add_at = [&](std::int64_t at) {  // the sums as they are stored are the values
      Pack<T, W> pack = load_pack<T, W>(from + at);
      const Pack<T, W> more = load_pack<T, W>(addend + first + at);
      for (int i = 0; i < W; ++i) pack.lane[i] = rounded<T>(to_float(pack.lane[i]) + to_float(more.lane[i]));
      store_pack(sums + first + at, pack);
      return pack;
    };
    if (Packs == 0 && addend) {  // a lane reads only what it wrote itself
      for (std::int64_t at = lane * W; at < width; at += 32 * W) add_at(at);
      from = sums + first;
    }
    const auto make = [&](std::int64_t at) {
      return Packs > 0 && addend ? add_at(at) : load_pack<T, W>(from + at);
    };
    Row<Packs, W, decltype(make)> values(width, make);
    float sum = 0, squares = 0;
    values.each([&](std::int64_t, const Pack<T, W>& v) {
#pragma unroll
      for (int i = 0; i < W; ++i) sum += to_float(v.lane[i]);
    });
    const float centre = warp_sum(sum) / static_cast<float>(width);
    values.each([&](std::int64_t, const Pack<T, W>& v) {
#pragma unroll
      for (int i = 0; i < W; ++i) squares += (to_float(v.lane[i]) - centre) * (to_float(v.lane[i]) - centre);
    });
    const float inverse = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(width) + with.eps);
    if (lane == 0) {
      with.mean[row] = centre;
      with.inv_std[row] = inverse;
    }
    values.each([&](std::int64_t at, const Pack<T, W>& v) {
      Pack<T, W> out;
      for (int i = 0; i < W; ++i)
        out.lane[i] = rounded<T>(
            fmaf((to_float(v.lane[i]) - centre) * inverse, with.weight[at + i], with.bias[at + i]));
      store_pack(y + first + at, out);
    });
  });
}

struct Backward {
  const float *weight, *mean, *inv_std;
};

template <int Packs, int W, class T>
__global__ void __launch_bounds__(32 * warps)
    input_gradient(std::int64_t rows, std::int64_t width, const T* dy, const T* x, Backward with,
                   const T* beside, T* dx) {
  struct Pair {
    Pack<T, W> dy, x;
  };
  for_rows_of_warp(rows, [&](std::int64_t row) {
    const float centre = with.mean[row], inverse = with.inv_std[row];
    const std::int64_t first = row * width;
    const auto make = [&](std::int64_t at) {
      return Pair{load_pack<T, W>(dy + first + at), load_pack<T, W>(x + first + at)};
    };
    Row<Packs, W, decltype(make)> pairs(width, make);
    float sum_g = 0, sum_gx = 0;
    pairs.each([&](std::int64_t at, const Pair& pair) {
#pragma unroll
      for (int i = 0; i < W; ++i) {
        const float g = to_float(pair.dy.lane[i]) * with.weight[at + i];
        sum_g += g;
        sum_gx += g * ((to_float(pair.x.lane[i]) - centre) * inverse);
      }
    });
    const float mean_g = warp_sum(sum_g) / static_cast<float>(width);
    const float mean_gx = warp_sum(sum_gx) / static_cast<float>(width);
    pairs.each([&](std::int64_t at, const Pair& pair) {
      Pack<T, W> out;
      if (beside) out = load_pack<T, W>(beside + first + at);
      for (int i = 0; i < W; ++i) {
        const float normal = (to_float(pair.x.lane[i]) - centre) * inverse;
        const float own =
            inverse * (to_float(pair.dy.lane[i]) * with.weight[at + i] - mean_g - normal * mean_gx);
        out.lane[i] = rounded<T>(beside ? to_float(out.lane[i]) + own : own);
      }
      store_pack(dx + first + at, out);
    });
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

/// body(packs that a lane keeps, elements of each): the smallest number that holds a row, or 0.
template <class T, class Body>
void choose(std::int64_t width, bool aligned, const Body& body) {
  const std::int64_t packs = ceil_div(width, 32 * pack_width<T>);
  if (!aligned || width % pack_width<T> != 0 || packs > 8) return body(Width<0>{}, Width<1>{});
  if (packs <= 2) return body(Width<2>{}, Width<pack_width<T>>{});
  if (packs <= 4) return body(Width<4>{}, Width<pack_width<T>>{});
  body(Width<8>{}, Width<pack_width<T>>{});
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
    choose<T>(columns, packs_at(from) && packs_at(added) && packs_at(sums) && packs_at(to),
              [&]<int Packs, int W>(Width<Packs>, Width<W>) {
                normalise<Packs, W>
                    <<<grid, 32 * warps, 0, on.stream>>>(count, columns, from, added, sums, with, to);
              });
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
    choose<T>(rows.width, packs_at(dy) && packs_at(x) && packs_at(beside) && packs_at(dx),
              [&]<int Packs, int W>(Width<Packs>, Width<W>) {
                input_gradient<Packs, W>
                    <<<grid, 32 * warps, 0, on.stream>>>(rows.count, rows.width, dy, x, with, beside, dx);
              });
  });
}

}  // namespace

void enter_layer_norm(CudaBackend& gpu) { gpu.enter<&layer_norm, &layer_norm_backward>(); }

}  // namespace lockstep::kernels
