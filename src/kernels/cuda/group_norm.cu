// Group norm: a block a group of channels of one image.
#include "kernels/cuda/column_sums.cuh"

namespace lockstep::kernels {
namespace {

constexpr int block = 256;

template <class T>
__global__ void __launch_bounds__(block)
    normalise(Groups groups, const T* x, const float* weight, const float* bias, float eps, T* y, float* mean,
              float* inv_std) {
  __shared__ float room[32];
  const std::int64_t elements = groups.group_elements();
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
    const std::int64_t first_channel = item % groups.groups * groups.group_channels;
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
    sum_channels(Groups groups, const T* dy, const T* x, const float* mean, const float* inv_std, float* sums,
                 float* products) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t runs = groups.images * groups.channels();
  for (std::int64_t run = global_thread() / 32; run < runs; run += global_threads() / 32) {
    const std::int64_t item = run / groups.group_channels;
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
    input_gradient(Groups groups, const T* dy, const T* x, const float* weight, const float* mean,
                   const float* inv_std, const float* sums, const float* products, T* dx) {
  __shared__ float room[32];
  const std::int64_t elements = groups.group_elements();
  for (std::int64_t item = blockIdx.x; item < groups.images * groups.groups; item += gridDim.x) {
    const std::int64_t first_channel = item % groups.groups * groups.group_channels;
    float part_g = 0, part_gx = 0;
    for (std::int64_t c = threadIdx.x; c < groups.group_channels; c += block) {
      part_g += weight[first_channel + c] * sums[item * groups.group_channels + c];
      part_gx += weight[first_channel + c] * products[item * groups.group_channels + c];
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
__global__ void __launch_bounds__(128)
    parameter_gradients(std::int64_t images, std::int64_t channels, const float* sums, const float* products,
                        float* dweight, float* dbias, bool accumulate) {
  for (std::int64_t c = global_thread(); c < channels; c += global_threads()) {
    float dweight_c = 0, dbias_c = 0;
    for (std::int64_t image = 0; image < images; ++image) {
      dweight_c += products[image * channels + c];
      dbias_c += sums[image * channels + c];
    }
    dweight[c] = accumulate ? dweight[c] + dweight_c : dweight_c;
    dbias[c] = accumulate ? dbias[c] + dbias_c : dbias_c;
  }
}

}  // namespace

void launch_group_norm(const Launch& on, DType dtype, const void* x, const Groups& groups,
                       const float* weight, const float* bias, float eps, void* y, float* mean,
                       float* inv_std) {
  const std::int64_t items = groups.images * groups.groups;
  if (items * groups.group_elements() == 0) return;
  with_float_type<BF16>("group_norm", dtype, [&]<class T>(T) {
    normalise<<<grid_for(items * block, block, on), block, 0, on.stream>>>(
        groups, static_cast<const T*>(x), weight, bias, eps, static_cast<T*>(y), mean, inv_std);
  });
  check_launch("group_norm", on);
}

void launch_group_norm_backward(const Launch& on, DType dtype, const void* dy, const void* x,
                                const Groups& groups, const float* weight, const float* mean,
                                const float* inv_std, void* dx, float* dweight, float* dbias, bool accumulate,
                                float* sums) {
  constexpr const char* name = "group_norm_backward";
  const std::int64_t channels = groups.channels(), runs = groups.images * channels;
  float* const products = sums + runs;
  if (channels == 0) return;
  if (runs > 0) {
    with_float_type<BF16>(name, dtype, [&]<class T>(T) {
      const auto *upstream = static_cast<const T*>(dy), *from = static_cast<const T*>(x);
      sum_channels<<<grid_for(runs * 32, block, on), block, 0, on.stream>>>(groups, upstream, from, mean,
                                                                            inv_std, sums, products);
      check_launch(name, on);
      if (groups.places == 0) return;
      input_gradient<<<grid_for(groups.images * groups.groups * block, block, on), block, 0, on.stream>>>(
          groups, upstream, from, weight, mean, inv_std, sums, products, static_cast<T*>(dx));
      check_launch(name, on);
    });
  }
  parameter_gradients<<<grid_for(channels, 128, on), 128, 0, on.stream>>>(
      groups.images, channels, sums, products, dweight, dbias, accumulate);
  check_launch(name, on);
}

}  // namespace lockstep::kernels
