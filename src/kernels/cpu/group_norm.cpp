// Group norm over groups of channels of one image (Wu, He, 2018).
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "lockstep/ops/norm.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 8192;

std::int64_t groups_per_thread(const ops::GroupSizes& sizes) {
  return elements_per_thread / std::max<std::int64_t>(1, sizes.group_elements());
}

/// Sum of dy * (x - mean) * inv_std over one channel of one image.
float sum_of_products(const float* dy, const float* x, float mean, float inv_std, std::int64_t places) {
  return lane_sum(places, [=](const auto& load) { return load(dy) * ((load(x) - mean) * inv_std); });
}

}  // namespace

void group_norm(CpuBackend& cpu, const ops::GroupNorm& op) {
  const ops::GroupSizes sizes = op.sizes();
  const float *from = op.x.data<float>(), *w = op.weight.data<float>(), *b = op.bias.data<float>();
  float *to = op.y.data<float>(), *means = op.mean.data<float>(), *inverses = op.inv_std.data<float>();
  const std::int64_t elements = sizes.group_elements();
  const float eps = op.eps;
  if (elements == 0) return;
  parallel_items(
      cpu.threads(), sizes.images * sizes.groups, groups_per_thread(sizes), [=](std::int64_t item) {
        const float* group = from + item * elements;
        const float centre = sum(group, elements) / static_cast<float>(elements);
        const float variance = sum_of_squares_about(group, centre, elements) / static_cast<float>(elements);
        const float inverse = 1.0f / std::sqrt(variance + eps);
        means[item] = centre;
        inverses[item] = inverse;
        const std::int64_t first_channel = item % sizes.groups * sizes.channels_per_group;
        for (std::int64_t c = 0; c < sizes.channels_per_group; ++c) {
          const float factor = w[first_channel + c], shift = b[first_channel + c];
          const float* source = group + c * sizes.places;
          float* target = to + item * elements + c * sizes.places;
#pragma GCC ivdep
          for (std::int64_t i = 0; i < sizes.places; ++i)
            target[i] = std::fma((source[i] - centre) * inverse, factor, shift);
        }
      });
}

void group_norm_backward(CpuBackend& cpu, const ops::GroupNormBackward& op) {
  const ops::GroupSizes sizes = op.sizes();
  const float *upstream = op.dy.data<float>(), *from = op.x.data<float>(), *w = op.weight.data<float>(),
              *means = op.mean.data<float>(), *inverses = op.inv_std.data<float>();
  float *to = op.dx.data<float>(), *weight_sum = op.dweight.data<float>(), *bias_sum = op.dbias.data<float>();
  const std::int64_t channels = sizes.channels, places = sizes.places, elements = sizes.group_elements();

  // Per image and channel: the sum of dy, and of dy times the normalised x.
  const Tensor sums_holder = cpu.scratch(2 * sizes.images * channels);
  float *sums = sums_holder.data<float>(), *products = sums + sizes.images * channels;
  parallel_items(
      cpu.threads(), sizes.images * sizes.groups, groups_per_thread(sizes), [=](std::int64_t item) {
        const std::int64_t first_channel = item % sizes.groups * sizes.channels_per_group;
        const float centre = means[item], inverse = inverses[item];
        float mean_g = 0, mean_gx = 0;
        for (std::int64_t c = 0; c < sizes.channels_per_group; ++c) {
          const std::int64_t channel = item * sizes.channels_per_group + c, at = channel * places;
          sums[channel] = sum(upstream + at, places);
          products[channel] = sum_of_products(upstream + at, from + at, centre, inverse, places);
          mean_g += w[first_channel + c] * sums[channel];
          mean_gx += w[first_channel + c] * products[channel];
        }
        mean_g /= static_cast<float>(elements);
        mean_gx /= static_cast<float>(elements);
        for (std::int64_t c = 0; c < sizes.channels_per_group; ++c) {
          const std::int64_t at = (item * sizes.channels_per_group + c) * places;
          const float factor = w[first_channel + c];
#pragma GCC ivdep
          for (std::int64_t i = at; i < at + places; ++i) {
            to[i] = inverse * (upstream[i] * factor - mean_g - (from[i] - centre) * inverse * mean_gx);
          }
        }
      });
  for (std::int64_t c = 0; c < channels; ++c) {
    float dweight_c = 0, dbias_c = 0;
    for (std::int64_t image = 0; image < sizes.images; ++image) {
      dweight_c += products[image * channels + c];
      dbias_c += sums[image * channels + c];
    }
    weight_sum[c] = op.accumulate ? weight_sum[c] + dweight_c : dweight_c;
    bias_sum[c] = op.accumulate ? bias_sum[c] + dbias_c : dbias_c;
  }
}

void enter_group_norm(CpuBackend& cpu) { cpu.enter<&group_norm, &group_norm_backward>(Computes::in_float32); }

}  // namespace lockstep::kernels
