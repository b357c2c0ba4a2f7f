// Group norm: a block a group of channels of one image.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "lockstep/ops/norm.h"

namespace lockstep::kernels {
namespace {

constexpr int block = 256;

template <class T>
__global__ void __launch_bounds__(block)
    normalise(ops::GroupSizes groups, const T* x, const float* weight, const float* bias, float eps, T* y,
              float* mean, float* inv_std) {
  __shared__ float room[32];
  const std::int64_t elements = groups.channels_per_group * groups.places;
  for (std::int64_t item = blockIdx.x; item < groups.images * groups.groups; item += gridDim.x) {
    const T* from = x + item * elements;
    float sum = 0;
    for (std::int64_t i = threadIdx.x; i < elements; i += block) sum += to_float(from[i]);
    const float centre = block_sum(sum, room) / static_cast<float>(elements);
    float squares = 0;
    for (std::int64_t i = threadIdx.x; i < elements; i += block)
      squares += (to_float(from[i]) - centre) * (to_float(from[i]) - centre);
    const float inverse = 1.0f / sqrtf(block_sum(squares, room) / static_cast<float>(elements) + eps);
    if (threadIdx.x == 0) {
      mean[item] = centre;
      inv_std[item] = inverse;
    }
    const std::int64_t first_channel = item % groups.groups * groups.channels_per_group;
    for (std::int64_t i = threadIdx.x; i < elements; i += block) {
      const std::int64_t channel = first_channel + i / groups.places;
      y[item * elements + i] =
          rounded<T>(fmaf((to_float(from[i]) - centre) * inverse, weight[channel], bias[channel]));
    }
  }
}

/// Per image and channel the sum of dy, and of dy times the normalised x: a warp each.
template <class T>
__global__ void __launch_bounds__(block)
    sum_channels(ops::GroupSizes groups, const T* dy, const T* x, const float* mean, const float* inv_std,
                 float* sums, float* products) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t runs = groups.images * groups.channels;
  for (std::int64_t run = global_thread() / 32; run < runs; run += global_threads() / 32) {
    const std::int64_t item = run / groups.channels_per_group;
    const float centre = mean[item], inverse = inv_std[item];
    float sum = 0, product = 0;
    for (std::int64_t i = lane; i < groups.places; i += 32) {
      const float upstream = to_float(dy[run * groups.places + i]);
      sum += upstream;
      product += upstream * ((to_float(x[run * groups.places + i]) - centre) * inverse);
    }
    sum = warp_sum(sum);
    product = warp_sum(product);
    if (lane == 0) {
      sums[run] = sum;
      products[run] = product;
    }
  }
}

template <class T>
__global__ void __launch_bounds__(block)
    input_gradient(ops::GroupSizes groups, const T* dy, const T* x, const float* weight, const float* mean,
                   const float* inv_std, const float* sums, const float* products, T* dx) {
  __shared__ float room[32];
  const std::int64_t elements = groups.channels_per_group * groups.places;
  for (std::int64_t item = blockIdx.x; item < groups.images * groups.groups; item += gridDim.x) {
    const std::int64_t first_channel = item % groups.groups * groups.channels_per_group;
    float part_g = 0, part_gx = 0;
    for (std::int64_t c = threadIdx.x; c < groups.channels_per_group; c += block) {
      part_g += weight[first_channel + c] * sums[item * groups.channels_per_group + c];
      part_gx += weight[first_channel + c] * products[item * groups.channels_per_group + c];
    }
    const float mean_g = block_sum(part_g, room) / static_cast<float>(elements);
    const float mean_gx = block_sum(part_gx, room) / static_cast<float>(elements);
    const float centre = mean[item], inverse = inv_std[item];
    for (std::int64_t i = threadIdx.x; i < elements; i += block) {
      const std::int64_t at = item * elements + i;
      const float factor = weight[first_channel + i / groups.places];
      dx[at] = rounded<T>(
          inverse * (to_float(dy[at]) * factor - mean_g - (to_float(x[at]) - centre) * inverse * mean_gx));
    }
  }
}

/// Over the images, in order.
struct ParameterGradients {
  std::int64_t images, channels;
  const float *sums, *products;
  float *dweight, *dbias;
  bool accumulate;
  __device__ void operator()(std::int64_t c) const {
    float dweight_c = 0, dbias_c = 0;
    for (std::int64_t image = 0; image < images; ++image) {
      dweight_c += products[image * channels + c];
      dbias_c += sums[image * channels + c];
    }
    dweight[c] = accumulate ? dweight[c] + dweight_c : dweight_c;
    dbias[c] = accumulate ? dbias[c] + dbias_c : dbias_c;
  }
};

void group_norm(CudaBackend& gpu, const ops::GroupNorm& op) {
  const ops::GroupSizes groups = op.sizes();
  const Launch on = gpu.launch();
  const std::int64_t items = groups.images * groups.groups;
  if (op.x.numel() == 0) return;
  by_type_of(op.x, [&]<class T>(T) {
    normalise<<<grid_for(items * block, block, on), block, 0, on.stream>>>(
        groups, op.x.data<T>(), op.weight.data<float>(), op.bias.data<float>(), op.eps, op.y.data<T>(),
        op.mean.data<float>(), op.inv_std.data<float>());
  });
}

void group_norm_backward(CudaBackend& gpu, const ops::GroupNormBackward& op) {
  const ops::GroupSizes groups = op.sizes();
  const Launch on = gpu.launch();
  const std::int64_t runs = groups.images * groups.channels;
  if (groups.channels == 0) return;
  const Tensor room = gpu.scratch(2 * runs);
  float *const sums = room.data<float>(), *const products = sums + runs;
  const float *const mean = op.mean.data<float>(), *const inv_std = op.inv_std.data<float>();
  by_type_of(op.x, [&]<class T>(T) {
    const T *const dy = op.dy.data<T>(), *const x = op.x.data<T>();
    if (runs > 0)
      sum_channels<<<grid_for(runs * 32, block, on), block, 0, on.stream>>>(groups, dy, x, mean, inv_std,
                                                                            sums, products);
    if (op.x.numel() > 0)
      input_gradient<<<grid_for(groups.images * groups.groups * block, block, on), block, 0, on.stream>>>(
          groups, dy, x, op.weight.data<float>(), mean, inv_std, sums, products, op.dx.data<T>());
  });
  for_elements(on, groups.channels,
               ParameterGradients{groups.images, groups.channels, sums, products, op.dweight.data<float>(),
                                  op.dbias.data<float>(), op.accumulate},
               128);
}

}  // namespace

void enter_group_norm(CudaBackend& gpu) { gpu.enter<&group_norm, &group_norm_backward>(); }

}  // namespace lockstep::kernels
