// Group norm: one block per group of channels of one image.
#include <limits>

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "lockstep/base/error.h"
#include "ops/norm.h"

namespace lockstep::kernels {
namespace {

constexpr int group_block = 256;

/// Calls body(channel, element) for this thread's packs of a group, each in one channel. A 64-bit division
/// for each pack would take longer than the work.
template <int Width, class Body>
__device__ void for_packs_of_group(const ops::GroupSizes& groups, unsigned item, const Body& body) {
  constexpr unsigned step = group_block * Width;
  // With more positions, a step does not cross a whole channel either.
  const auto positions = static_cast<unsigned>(groups.positions < step ? groups.positions : step + 1);
  const unsigned first = threadIdx.x * Width, group = item % static_cast<unsigned>(groups.groups);
  std::int64_t channel = group * groups.channels_per_group + first / positions, position = first % positions;
  for (std::int64_t i = first; i < groups.channels_per_group * groups.positions; i += step) {
    body(channel, i);
    channel += step / positions;
    position += step % positions;
    if (position < groups.positions) continue;
    position -= groups.positions;
    ++channel;
  }
}

template <int Width, class T>
__global__ void __launch_bounds__(group_block)
    normalise_group(ops::GroupSizes groups, unsigned items, const T* x, const float* weight,
                    const float* bias, float eps, T* y, float* mean, float* inv_std) {
  __shared__ float shared[32];
  const std::int64_t elements = groups.channels_per_group * groups.positions;
  for (unsigned item = blockIdx.x; item < items; item += gridDim.x) {
    const T* from = x + item * elements;
    const auto mean_of = [&](const auto& term) {
      float sum = 0;
      for_packs_of_group<Width>(groups, item, [&](std::int64_t, std::int64_t i) {
        const Pack<T, Width> in = load_pack<T, Width>(from + i);
        for (int lane = 0; lane < Width; ++lane) sum += term(to_float(in.lane[lane]));
      });
      return block_sum(sum, shared) / static_cast<float>(elements);
    };
    const float centre = mean_of([](float value) { return value; });
    const float variance = mean_of([&](float value) { return (value - centre) * (value - centre); });
    const float inverse = 1.0f / sqrtf(variance + eps);
    if (threadIdx.x == 0) {
      mean[item] = centre;
      inv_std[item] = inverse;
    }
    for_packs_of_group<Width>(groups, item, [&](std::int64_t channel, std::int64_t i) {
      const float factor = weight[channel], shift = bias[channel];
      const auto normalised = [&](float value) { return fmaf((value - centre) * inverse, factor, shift); };
      map_pack<Width>(normalised, y + item * elements + i, load_pack<T, Width>(from + i));
    });
  }
}

/// Per image and channel the sums of dy and of dy times the normalised x, by one warp each.
template <int Width, class T>
__global__ void __launch_bounds__(group_block)
    sum_group_channels(ops::GroupSizes groups, unsigned runs, const T* dy, const T* x, const float* mean,
                       const float* inv_std, float* sums, float* products) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (auto run = static_cast<unsigned>(global_thread() / 32); run < runs; run += global_threads() / 32) {
    const unsigned item = run / static_cast<unsigned>(groups.channels_per_group);
    const float centre = mean[item], inverse = inv_std[item];
    float sum = 0, product = 0;
    for (std::int64_t i = lane * Width; i < groups.positions; i += 32 * Width) {
      const Pack<T, Width> upstream = load_pack<T, Width>(dy + run * groups.positions + i),
                           input = load_pack<T, Width>(x + run * groups.positions + i);
      for (int k = 0; k < Width; ++k) {
        sum += to_float(upstream.lane[k]);
        product += to_float(upstream.lane[k]) * ((to_float(input.lane[k]) - centre) * inverse);
      }
    }
    sum = warp_sum(sum);
    product = warp_sum(product);
    if (lane == 0) {
      sums[run] = sum;
      products[run] = product;
    }
  }
}

template <int Width, class T>
__global__ void __launch_bounds__(group_block)
    group_input_gradient(ops::GroupSizes groups, unsigned items, const T* dy, const T* x, const float* weight,
                         const float* mean, const float* inv_std, const float* sums, const float* products,
                         T* dx) {
  __shared__ float shared[32];
  const std::int64_t elements = groups.channels_per_group * groups.positions;
  for (unsigned item = blockIdx.x; item < items; item += gridDim.x) {
    const std::int64_t first_channel =
        item % static_cast<unsigned>(groups.groups) * groups.channels_per_group;
    float part_g = 0, part_gx = 0;
    for (std::int64_t c = threadIdx.x; c < groups.channels_per_group; c += group_block) {
      part_g += weight[first_channel + c] * sums[item * groups.channels_per_group + c];
      part_gx += weight[first_channel + c] * products[item * groups.channels_per_group + c];
    }
    const float mean_g = block_sum(part_g, shared) / static_cast<float>(elements);
    const float mean_gx = block_sum(part_gx, shared) / static_cast<float>(elements);
    const float centre = mean[item], inverse = inv_std[item];
    for_packs_of_group<Width>(groups, item, [&](std::int64_t channel, std::int64_t i) {
      const std::int64_t at = item * elements + i;
      const float factor = weight[channel];
      const auto gradient = [&](float upstream, float input) {
        return inverse * (upstream * factor - mean_g - (input - centre) * inverse * mean_gx);
      };
      map_pack<Width>(gradient, dx + at, load_pack<T, Width>(dy + at), load_pack<T, Width>(x + at));
    });
  }
}

/// x: [parts, images, channels]
void sum_over_images(CudaBackend& gpu, int parts, const ops::GroupSizes& sizes, const float* x,
                     float* gradient, bool accumulate) {
  sum_columns<1, float, float>(gpu, sizes.images, sizes.channels, sums_packs<float, float>(sizes.channels, x),
                               Elements<float>{x}, IntoGradients<1>{{gradient}, accumulate}, parts);
}

/// The number of groups of all images. Kernels count groups and channels in 32 bits.
unsigned groups_of_all(const ops::GroupSizes& sizes) {
  constexpr std::int64_t max_channels = std::numeric_limits<unsigned>::max() / 2;
  if (sizes.channels * sizes.images > max_channels)
    throw UsageError("group norm on a GPU: {} images of {} channels; at most {} channels of all images",
                     sizes.images, sizes.channels, max_channels);
  return static_cast<unsigned>(sizes.groups * sizes.images);
}

void group_norm(CudaBackend& gpu, const ops::GroupNorm& op) {
  const ops::GroupSizes groups = op.sizes();
  const Launch on = gpu.launch();
  const unsigned items = groups_of_all(groups);
  if (op.x.numel() == 0) return;
  by_type_of(op.x, [&]<class T>(T) {
    const T* const x = op.x.data<T>();
    T* const y = op.y.data<T>();
    const bool packs = groups.positions % pack_width<T> == 0 && packs_at(x) && packs_at(y);
    with_width<T>(packs, [&]<int width>(Width<width>) {
      const unsigned grid = grid_for(std::int64_t{items} * group_block, group_block, on);
      normalise_group<width><<<grid, group_block, 0, on.stream>>>(
          groups, items, x, op.weight.data<float>(), op.bias.data<float>(), op.eps, y, op.mean.data<float>(),
          op.inv_std.data<float>());
    });
  });
}

void group_norm_backward(CudaBackend& gpu, const ops::GroupNormBackward& op, int parts) {
  const ops::GroupSizes groups = op.sizes();
  ops::GroupSizes all = groups;
  all.images *= parts;
  const Launch on = gpu.launch();
  const unsigned items = groups_of_all(all);
  const auto runs = static_cast<unsigned>(all.channels * all.images);
  if (groups.channels == 0) return;
  const Tensor scratch = gpu.scratch(std::int64_t{2} * runs);
  float *const sums = scratch.data<float>(), *const products = sums + runs;
  const float *const mean = op.mean.data<float>(), *const inv_std = op.inv_std.data<float>();
  by_type_of(op.x, [&]<class T>(T) {
    const T *const dy = op.dy.data<T>(), *const x = op.x.data<T>();
    T* const dx = op.dx.data<T>();
    const bool packs = groups.positions % pack_width<T> == 0 && packs_at(dy) && packs_at(x) && packs_at(dx);
    with_width<T>(packs, [&]<int width>(Width<width>) {
      const unsigned of_runs = grid_for(std::int64_t{runs} * 32, group_block, on),
                     of_items = grid_for(std::int64_t{items} * group_block, group_block, on);
      if (runs > 0)
        sum_group_channels<width>
            <<<of_runs, group_block, 0, on.stream>>>(groups, runs, dy, x, mean, inv_std, sums, products);
      if (op.x.numel() > 0)
        group_input_gradient<width><<<of_items, group_block, 0, on.stream>>>(
            groups, items, dy, x, op.weight.data<float>(), mean, inv_std, sums, products, dx);
    });
  });
  sum_over_images(gpu, parts, groups, products, op.dweight.data<float>(), op.accumulate);
  sum_over_images(gpu, parts, groups, sums, op.dbias.data<float>(), op.accumulate);
}

}  // namespace

void enter_group_norm(CudaBackend& gpu) {
  gpu.enter<&group_norm>();
  gpu.enter_at_once<&group_norm_backward>();
}

}  // namespace lockstep::kernels
