// Group norm over groups of channels of one image (Wu, He, 2018).
#include <cmath>

#include "kernels/cpu/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/problems.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 8192;

std::int64_t groups_per_thread(const GroupSizes& sizes) {
  return elements_per_thread / std::max<std::int64_t>(1, sizes.group_elements());
}

/// Sum of dy * (x - mean) * inv_std over one channel of one image.
float sum_of_products(const float* dy, const float* x, float mean, float inv_std, std::int64_t places) {
  return lane_sum(
      places, [=](std::int64_t i) { return load_floats(dy + i) * ((load_floats(x + i) - mean) * inv_std); },
      [=](std::int64_t i, std::int64_t n) {
        return load_first(dy + i, n) * ((load_first(x + i, n) - mean) * inv_std);
      });
}

}  // namespace

void CpuBackend::group_norm(const Tensor& x, int groups, const Tensor& weight, const Tensor& bias, float eps,
                            const Tensor& y, const Tensor& mean, const Tensor& inv_std) {
  constexpr const char* operation = "group_norm";
  const GroupSizes sizes = group_sizes(operation, x, groups, weight, mean, inv_std);
  require_shape(operation, "y", y, x.shape());
  require_shape(operation, "bias", bias, {sizes.channels});
  const float *from = plain_floats(operation, "x", x), *w = plain_floats(operation, "weight", weight),
              *b = plain_floats(operation, "bias", bias);
  float *to = plain_floats(operation, "y", y), *means = plain_floats(operation, "mean", mean),
        *inverses = plain_floats(operation, "inv_std", inv_std);
  const std::int64_t elements = sizes.group_elements();
  if (elements == 0) return;
  parallel_items(threads_, sizes.images * sizes.groups, groups_per_thread(sizes), [=](std::int64_t item) {
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

void CpuBackend::group_norm_backward(const Tensor& dy, const Tensor& x, int groups, const Tensor& weight,
                                     const Tensor& mean, const Tensor& inv_std, const Tensor& dx,
                                     const Tensor& dweight, const Tensor& dbias, bool accumulate) {
  constexpr const char* operation = "group_norm_backward";
  const GroupSizes sizes = group_sizes(operation, x, groups, weight, mean, inv_std);
  require_shape(operation, "dy", dy, x.shape());
  require_shape(operation, "dx", dx, x.shape());
  require_shape(operation, "dweight", dweight, {sizes.channels});
  require_shape(operation, "dbias", dbias, {sizes.channels});
  const float *upstream = plain_floats(operation, "dy", dy), *from = plain_floats(operation, "x", x),
              *w = plain_floats(operation, "weight", weight), *means = plain_floats(operation, "mean", mean),
              *inverses = plain_floats(operation, "inv_std", inv_std);
  float *to = plain_floats(operation, "dx", dx), *weight_sum = plain_floats(operation, "dweight", dweight),
        *bias_sum = plain_floats(operation, "dbias", dbias);
  const std::int64_t channels = sizes.channels, places = sizes.places, elements = sizes.group_elements();

  // Per image and channel: the sum of dy, and of dy times the normalised x.
  const Tensor sums_holder = scratch(2 * sizes.images * channels);
  float *sums = sums_holder.data<float>(), *products = sums + sizes.images * channels;
  parallel_items(threads_, sizes.images * sizes.groups, groups_per_thread(sizes), [=](std::int64_t item) {
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
    weight_sum[c] = accumulate ? weight_sum[c] + dweight_c : dweight_c;
    bias_sum[c] = accumulate ? bias_sum[c] + dbias_c : dbias_c;
  }
}

}  // namespace lockstep::kernels
