// Layer norm: one warp per row. A row of up to 1024 (bf16: 2048) elements is read once and stays in
// registers. For up to 512 (1024), the backward computes all gradients in one pass. RMS norm: one warp per
// row, which it reads twice, the second time from a cache.
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "ops/norm.h"

namespace lockstep::kernels {
namespace {

constexpr int row_warps = 4;

/// Calls body(row) for the rows of this warp.
template <class Body>
__device__ void for_rows_of_warp(std::int64_t rows, const Body& body) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * row_warps;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * row_warps + threadIdx.x / 32; row < rows;
       row += stride)
    body(row);
}

/// A lane's part of a row: the packs of W elements numbered lane, lane + 32 ..., from make(first element). At
/// most `Packs` are kept; 0: make() is called each time. W divides the row's width.
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

/// Blocks of a multiprocessor for which a kernel that keeps `packs` packs of a row has registers.
constexpr int blocks_of_rows(int packs, int max_blocks) { return packs == 0 || packs > 3 ? 1 : max_blocks; }

struct LayerForward {
  const float *weight, *bias;
  float eps;
  float *mean, *inv_std;
};

template <int Packs, int W, class T>
__global__ void __launch_bounds__(32 * row_warps, blocks_of_rows(Packs, 8))
    normalise_layer(std::int64_t rows, std::int64_t width, const T* x, const T* addend, T* sums,
                    LayerForward with, T* y) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for_rows_of_warp(rows, [&](std::int64_t row) {
    const std::int64_t first = row * width;
    const T* from = x + first;
    const auto add_at = [&](std::int64_t at) {  // the values are the rounded sums
      Pack<T, W> pack = load_pack<T, W>(from + at);
      const Pack<T, W> more = load_pack<T, W>(addend + first + at);
      for (int i = 0; i < W; ++i) pack.lane[i] = rounded<T>(to_float(pack.lane[i]) + to_float(more.lane[i]));
      store_pack(sums + first + at, pack);
      return pack;
    };
    if (Packs == 0 && addend) {  // a lane reads only its own writes
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
      const Pack<float, W> weight = load_vector<W>(with.weight + at), bias = load_vector<W>(with.bias + at);
      Pack<T, W> out;
      for (int i = 0; i < W; ++i)
        out.lane[i] =
            rounded<T>(fmaf((to_float(v.lane[i]) - centre) * inverse, weight.lane[i], bias.lane[i]));
      store_pack(y + first + at, out);
    });
  });
}

struct LayerBackward {
  const float *weight, *mean, *inv_std;
};

template <class T, int W>
struct RowPair {
  Pack<T, W> dy, x;
};

/// dx = own(lane) + residual_grad, the gradient past the norm; null: none.
template <int W, class T, class Own>
__device__ void store_gradient(T* dx, const T* residual_grad, std::int64_t at, const Own& own) {
  Pack<T, W> out;
  if (residual_grad) out = load_pack<T, W>(residual_grad + at);
  for (int i = 0; i < W; ++i)
    out.lane[i] = rounded<T>(residual_grad ? to_float(out.lane[i]) + own(i) : own(i));
  store_pack(dx + at, out);
}

template <int Packs, int W, class T>
__global__ void __launch_bounds__(32 * row_warps)
    layer_input_gradient(std::int64_t rows, std::int64_t width, const T* dy, const T* x, LayerBackward with,
                         const T* residual_grad, T* dx) {
  for_rows_of_warp(rows, [&](std::int64_t row) {
    const float centre = with.mean[row], inverse = with.inv_std[row];
    const std::int64_t first = row * width;
    const auto make = [&](std::int64_t at) {
      return RowPair<T, W>{load_pack<T, W>(dy + first + at), load_pack<T, W>(x + first + at)};
    };
    Row<Packs, W, decltype(make)> pairs(width, make);
    float sum_g = 0, sum_gx = 0;
    pairs.each([&](std::int64_t at, const RowPair<T, W>& pair) {
      const Pack<float, W> weight = load_vector<W>(with.weight + at);
#pragma unroll
      for (int i = 0; i < W; ++i) {
        const float g = to_float(pair.dy.lane[i]) * weight.lane[i];
        sum_g += g;
        sum_gx += g * ((to_float(pair.x.lane[i]) - centre) * inverse);
      }
    });
    const float mean_g = warp_sum(sum_g) / static_cast<float>(width);
    const float mean_gx = warp_sum(sum_gx) / static_cast<float>(width);
    pairs.each([&](std::int64_t at, const RowPair<T, W>& pair) {
      const Pack<float, W> weight = load_vector<W>(with.weight + at);
      store_gradient<W>(dx, residual_grad, first + at, [&](int i) {
        const float normal = (to_float(pair.x.lane[i]) - centre) * inverse;
        return inverse * (to_float(pair.dy.lane[i]) * weight.lane[i] - mean_g - normal * mean_gx);
      });
    });
  });
}

/// The same, with the parameters' gradients of a chunk of rows, one block per chunk. A lane adds up its
/// columns of its warp's rows, and then the warps are added in order. partial: [parts][chunks][dweight,
/// dbias][width].
template <int Packs, int W, class T>
__global__ void __launch_bounds__(32 * row_warps, blocks_of_rows(Packs, 3))
    layer_gradients(std::int64_t rows, std::int64_t width, std::int64_t rows_per_chunk, const T* dy,
                    const T* x, LayerBackward with, const T* residual_grad, T* dx, float* partial) {
  extern __shared__ float sums[];  // [dweight, dbias][Packs * W][lanes]
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto column = [&](int p) { return (static_cast<std::int64_t>(p) * 32 + lane) * W; };
  const std::int64_t before = part_number() * rows, begin = before + blockIdx.x * rows_per_chunk;
  const std::int64_t end = begin + rows_per_chunk < before + rows ? begin + rows_per_chunk : before + rows;
  float dweight[Packs * W] = {}, dbias[Packs * W] = {};
  for (std::int64_t row = begin + warp; row < end; row += row_warps) {
    const float centre = with.mean[row], inverse = with.inv_std[row];
    const std::int64_t first = row * width;
    Pack<T, W> upstream[Packs], in[Packs], residual[Packs];
    const auto load = [&](Pack<T, W>(&to)[Packs], const T* from) {  // all packs before one is waited for
#pragma unroll
      for (int p = 0; p < Packs; ++p) {
        if (column(p) < width) to[p] = load_pack<T, W>(from + first + column(p));
      }
    };
    load(upstream, dy);
    load(in, x);
    float sum_g = 0, sum_gx = 0;
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
      const std::int64_t at = column(p);
      if (at >= width) continue;
      const Pack<float, W> weight = load_vector<W>(with.weight + at);
#pragma unroll
      for (int i = 0; i < W; ++i) {
        const float out = to_float(upstream[p].lane[i]), g = out * weight.lane[i];
        const float normal = (to_float(in[p].lane[i]) - centre) * inverse;
        sum_g += g;
        sum_gx += g * normal;
        dweight[p * W + i] += out * normal;
        dbias[p * W + i] += out;
      }
    }
    if (residual_grad) load(residual, residual_grad);
    const float mean_g = warp_sum(sum_g) / static_cast<float>(width);
    const float mean_gx = warp_sum(sum_gx) / static_cast<float>(width);
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
      const std::int64_t at = column(p);
      if (at >= width) continue;
      const Pack<float, W> weight = load_vector<W>(with.weight + at);
      Pack<T, W> out;
#pragma unroll
      for (int i = 0; i < W; ++i) {
        const float normal = (to_float(in[p].lane[i]) - centre) * inverse;
        const float own =
            inverse * (to_float(upstream[p].lane[i]) * weight.lane[i] - mean_g - normal * mean_gx);
        out.lane[i] = rounded<T>(residual_grad ? to_float(residual[p].lane[i]) + own : own);
      }
      store_pack(dx + first + at, out);
    }
  }
  constexpr int kept = Packs * W;
  for (int turn = 0; turn < row_warps; ++turn) {
    if (warp == turn) {
#pragma unroll
      for (int i = 0; i < kept; ++i) {
        float &weights = sums[i * 32 + lane], &biases = sums[(kept + i) * 32 + lane];
        weights = turn == 0 ? dweight[i] : weights + dweight[i];
        biases = turn == 0 ? dbias[i] : biases + dbias[i];
      }
    }
    __syncthreads();
  }
  for (std::int64_t c = threadIdx.x; c < width; c += 32 * row_warps) {
    const std::int64_t i = c / (32 * W) * W + c % W, of_lane = c / W % 32;
    const std::int64_t chunk = std::int64_t{part_number()} * gridDim.x + blockIdx.x;
    for (int s = 0; s < 2; ++s) partial[(chunk * 2 + s) * width + c] = sums[(s * kept + i) * 32 + of_lane];
  }
}

/// The terms of dweight and dbias.
template <class T>
struct LayerParameterTerms {
  const T *dy, *x;
  const float *mean, *inv_std;

  template <int Width>
  __device__ auto of(std::int64_t, std::int64_t) const {
    return [*this](std::int64_t at, std::int64_t row, auto& totals) {
      const auto upstream = load_pack<T, Width>(dy + at), in = load_pack<T, Width>(x + at);
      const float centre = mean[row], inverse = inv_std[row];
      for (int lane = 0; lane < Width; ++lane) {
        const float out = to_float(upstream.lane[lane]);
        totals[0][lane] += out * ((to_float(in.lane[lane]) - centre) * inverse);
        totals[1][lane] += out;
      }
    };
  }
};

/// Calls body(packs that a lane keeps, elements of each), with the smallest number that holds a row, or 0.
template <class T, class Body>
void with_kept_packs(std::int64_t width, bool aligned, const Body& body) {
  const std::int64_t packs = ceil_div(width, 32 * pack_width<T>);
  if (!aligned || width % pack_width<T> != 0 || packs > 8) return body(Width<0>{}, Width<1>{});
  if (packs <= 1) return body(Width<1>{}, Width<pack_width<T>>{});
  if (packs <= 2) return body(Width<2>{}, Width<pack_width<T>>{});
  if (packs <= 3) return body(Width<3>{}, Width<pack_width<T>>{});
  if (packs <= 4) return body(Width<4>{}, Width<pack_width<T>>{});
  body(Width<8>{}, Width<pack_width<T>>{});
}

unsigned row_blocks(std::int64_t rows, const Launch& on) { return grid_for(rows * 32, 32 * row_warps, on); }

void layer_norm(CudaBackend& gpu, const ops::LayerNorm& op) {
  const auto [rows, width] = ops::rows_of(op.name, op.x);
  if (rows == 0 || width == 0) return;
  const Launch on = gpu.launch();
  const LayerForward with{op.weight.data<float>(), op.bias.data<float>(), op.eps, op.mean.data<float>(),
                          op.inv_std.data<float>()};
  by_type_of(op.x, [&, count = rows, columns = width]<class T>(T) {
    const T *const from = op.x.data<T>(), *const added = data_or_null<T>(op.addend);
    T *const to = op.y.data<T>(), *const sums = data_or_null<T>(op.sum);
    const unsigned grid = row_blocks(count, on);
    with_kept_packs<T>(columns,
                       packs_at(from) && packs_at(added) && packs_at(sums) && packs_at(to) &&
                           packs_at(with.weight) && packs_at(with.bias),
                       [&]<int Packs, int W>(Width<Packs>, Width<W>) {
                         normalise_layer<Packs, W><<<grid, 32 * row_warps, 0, on.stream>>>(
                             count, columns, from, added, sums, with, to);
                       });
  });
}

void layer_norm_backward(CudaBackend& gpu, const ops::LayerNormBackward& op, int parts) {
  const ops::Rows rows = ops::rows_of(op.name, op.x);
  const Launch on = gpu.launch();
  const LayerBackward with{op.weight.data<float>(), op.mean.data<float>(), op.inv_std.data<float>()};
  by_type_of(op.x, [&]<class T>(T) {
    const T *const dy = op.dy.data<T>(), *const x = op.x.data<T>(),
                   *const residual_grad = data_or_null<T>(op.residual_grad);
    T* const dx = op.dx.data<T>();
    const IntoGradients<2> receive{{op.dweight.data<float>(), op.dbias.data<float>()}, op.accumulate};
    const auto in_two_passes = [&] {  // the parameters' gradients first, because dx may be dy
      sum_columns<2, float, T>(gpu, rows.count, rows.width, sums_packs<float, T>(rows.width, dy, x),
                               LayerParameterTerms<T>{dy, x, with.mean, with.inv_std}, receive, parts);
    };
    if (rows.count == 0 || rows.width == 0) return in_two_passes();
    const unsigned grid = row_blocks(parts * rows.count, on);
    with_kept_packs<T>(
        rows.width,
        packs_at(dy) && packs_at(x) && packs_at(residual_grad) && packs_at(dx) && packs_at(with.weight),
        [&]<int Packs, int W>(Width<Packs>, Width<W>) {
          constexpr int max_packs = 4;  // whose sums fit into registers
          if constexpr (Packs > 0 && Packs <= max_packs) {
            constexpr std::int64_t at_once = 384;  // blocks, on GPUs of 128 multiprocessors and more
            const std::int64_t chunks = std::min(row_chunks(rows.count), at_once);
            const Tensor scratch = gpu.scratch(2 * parts * chunks * rows.width);
            float* const partial = scratch.data<float>();
            constexpr std::size_t shared_bytes = 2 * 32 * Packs * W * sizeof(float);
            layer_gradients<Packs, W><<<for_parts(static_cast<unsigned>(chunks), parts), 32 * row_warps,
                                        shared_bytes, on.stream>>>(rows.count, rows.width,
                                                                   ceil_div(rows.count, chunks), dy, x, with,
                                                                   residual_grad, dx, partial);
            fold<2>(on, chunks, rows.width, static_cast<const float*>(partial), receive, parts);
          } else {
            in_two_passes();
            layer_input_gradient<Packs, W><<<grid, 32 * row_warps, 0, on.stream>>>(
                parts * rows.count, rows.width, dy, x, with, residual_grad, dx);
          }
        });
  });
}

template <int W, class T>
__global__ void __launch_bounds__(32 * row_warps)
    normalise_rms(std::int64_t rows, std::int64_t width, const T* xs, const float* weight, float eps, T* ys,
                  float* inv_rms) {
  for_rows_of_warp(rows, [&](std::int64_t row) {
    const auto make = [x = xs + row * width](std::int64_t at) { return load_pack<T, W>(x + at); };
    Row<0, W, decltype(make)> values(width, make);
    float squares = 0;
    values.each([&](std::int64_t, const Pack<T, W>& v) {
      for (int i = 0; i < W; ++i) squares += to_float(v.lane[i]) * to_float(v.lane[i]);
    });
    const float inverse = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(width) + eps);
    if (threadIdx.x % 32 == 0) inv_rms[row] = inverse;
    values.each([&](std::int64_t at, Pack<T, W> v) {
      for (int i = 0; i < W; ++i) v.lane[i] = rounded<T>(to_float(v.lane[i]) * inverse * weight[at + i]);
      store_pack(ys + row * width + at, v);
    });
  });
}

template <int W, class T>
__global__ void __launch_bounds__(32 * row_warps)
    rms_input_gradient(std::int64_t rows, std::int64_t width, const T* dy, const T* x, const float* weight,
                       const float* inv_rms, const T* residual_grad, T* dx) {
  for_rows_of_warp(rows, [&](std::int64_t row) {
    const float inverse = inv_rms[row];
    const std::int64_t first = row * width;
    const auto make = [&](std::int64_t at) {
      return RowPair<T, W>{load_pack<T, W>(dy + first + at), load_pack<T, W>(x + first + at)};
    };
    Row<0, W, decltype(make)> pairs(width, make);
    float sum = 0;  // of the gradient of x / rms times x / rms
    pairs.each([&](std::int64_t at, const RowPair<T, W>& pair) {
      for (int i = 0; i < W; ++i)
        sum += to_float(pair.dy.lane[i]) * weight[at + i] * (to_float(pair.x.lane[i]) * inverse);
    });
    const float mean = warp_sum(sum) / static_cast<float>(width);
    pairs.each([&](std::int64_t at, const RowPair<T, W>& pair) {
      store_gradient<W>(dx, residual_grad, first + at, [&](int i) {
        return inverse *
               (to_float(pair.dy.lane[i]) * weight[at + i] - to_float(pair.x.lane[i]) * inverse * mean);
      });
    });
  });
}

template <class T>
struct WeightTerms {
  const T *dy, *x;
  const float* inv_rms;

  template <int Width>
  __device__ auto of(std::int64_t, std::int64_t) const {
    return [*this](std::int64_t at, std::int64_t row, auto& totals) {
      const auto upstream = load_pack<T, Width>(dy + at), in = load_pack<T, Width>(x + at);
      const float inverse = inv_rms[row];
      for (int lane = 0; lane < Width; ++lane)
        totals[0][lane] += to_float(upstream.lane[lane]) * (to_float(in.lane[lane]) * inverse);
    };
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
      normalise_rms<width><<<row_blocks(rows.count, on), 32 * row_warps, 0, on.stream>>>(
          rows.count, rows.width, x, weight, op.eps, y, inv_rms);
    });
  });
}

void rms_norm_backward(CudaBackend& gpu, const ops::RmsNormBackward& op, int parts) {
  const ops::Rows rows = ops::rows_of(op.name, op.x);
  const Launch on = gpu.launch();
  const float *const weight = op.weight.data<float>(), *const inv_rms = op.inv_rms.data<float>();
  by_type_of(op.x, [&]<class T>(T) {
    const T *const dy = op.dy.data<T>(), *const x = op.x.data<T>(),
                   *const residual_grad = data_or_null<T>(op.residual_grad);
    T* const dx = op.dx.data<T>();
    if (op.dweight)
      sum_columns<1, float, T>(gpu, rows.count, rows.width, sums_packs<float, T>(rows.width, dy, x),
                               WeightTerms<T>{dy, x, inv_rms},
                               IntoGradients<1>{{op.dweight.data<float>()}, op.accumulate}, parts);
    if (rows.count == 0 || rows.width == 0) return;
    const bool packs = rows.width % pack_width<T> == 0 && packs_at(dy) && packs_at(x) &&
                       packs_at(residual_grad) && packs_at(dx);
    with_width<T>(packs, [&]<int width>(Width<width>) {
      rms_input_gradient<width><<<row_blocks(parts * rows.count, on), 32 * row_warps, 0, on.stream>>>(
          parts * rows.count, rows.width, dy, x, weight, inv_rms, residual_grad, dx);
    });
  });
}

}  // namespace

void enter_norm(CudaBackend& gpu) {
  gpu.enter<&layer_norm, &rms_norm>();
  gpu.enter_at_once<&layer_norm_backward, &rms_norm_backward>();
}

}  // namespace lockstep::kernels
