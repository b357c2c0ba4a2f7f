// What batch norm makes of its moments: a mean and a deviation per channel, and the running ones.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace lockstep::kernels {
namespace {

/// Per channel the sum, per channel the sum of squares, the count.
struct Moments {
  double* data;
  std::int64_t channels;

  double* sums() const { return data; }
  double* squares() const { return data + channels; }
  double count() const { return data[2 * channels]; }
};

Moments moments_of(const char* operation, const Tensor& total) {
  const std::int64_t channels = (total.numel() - 1) / 2;
  require_shape(operation, "the total", total, {2 * channels + 1});
  return {elements<double>(operation, "the total", total), channels};
}

float* channel_floats(const char* operation, const char* name, const Tensor& tensor, std::int64_t channels) {
  require_shape(operation, name, tensor, {channels});
  return floats(operation, name, tensor);
}

}  // namespace

bool CpuBackend::moments_lack_digits(const Tensor& total, float eps) {
  // float32 parts carry a relative error of 1e-7 of (distance^2 + variance).
  constexpr double squared_distance_limit = 16;  // in variances
  const Moments moments = moments_of("moments_lack_digits", total);
  const double n = moments.count();
  if (!(n > 0)) return false;
  for (std::int64_t c = 0; c < moments.channels; ++c) {
    const double distance = moments.sums()[c] / n;
    const double variance = moments.squares()[c] / n - distance * distance;
    if (!(distance * distance <= squared_distance_limit * (variance + eps))) return true;
  }
  return false;
}

void CpuBackend::batch_statistics(const Tensor& total, const Tensor& centre, const Tensor& running_var,
                                  float eps, const Tensor& mean, const Tensor& inv_std) {
  constexpr const char* operation = "batch_statistics";
  const std::int64_t channels = mean.numel();
  const float* centres = channel_floats(operation, "centre", centre, channels);
  const float* variances = channel_floats(operation, "running_var", running_var, channels);
  float* means = channel_floats(operation, "mean", mean, channels);
  float* inv_stds = channel_floats(operation, "inv_std", inv_std, channels);
  const Moments moments = total ? moments_of(operation, total) : Moments{nullptr, channels};
  if (moments.channels != channels) {
    throw UsageError("{}: a total of {} elements is not that of {} channels", operation, total.numel(),
                     channels);
  }
  if (!total || !(moments.count() > 0)) {
    std::copy_n(centres, channels, means);
    for (std::int64_t c = 0; c < channels; ++c) {
      const double variance = variances[c];
      inv_stds[c] = static_cast<float>(1 / std::sqrt(variance + eps));
    }
    return;
  }
  const double count = moments.count();
  for (std::int64_t c = 0; c < channels; ++c) {
    const double distance = moments.sums()[c] / count;
    const double variance = std::max(0.0, moments.squares()[c] / count - distance * distance);
    means[c] = static_cast<float>(centres[c] + distance);
    inv_stds[c] = static_cast<float>(1 / std::sqrt(variance + eps));
  }
}

// sum (x - b) = sum (x - a) + n (a - b), and so the squares.
void CpuBackend::move_centre(const Tensor& total, const Tensor& from, const Tensor& to) {
  constexpr const char* operation = "move_centre";
  const Moments moments = moments_of(operation, total);
  const float* before = channel_floats(operation, "from", from, moments.channels);
  const float* after = channel_floats(operation, "to", to, moments.channels);
  const double n = moments.count();
  for (std::int64_t c = 0; c < moments.channels; ++c) {
    const double shift = static_cast<double>(before[c]) - after[c];
    moments.squares()[c] += 2 * shift * moments.sums()[c] + n * shift * shift;
    moments.sums()[c] += n * shift;
  }
}

void CpuBackend::update_running(const Tensor& total, float momentum, const Tensor& running_mean,
                                const Tensor& running_var, const Tensor& batches) {
  constexpr const char* operation = "update_running";
  const Moments moments = moments_of(operation, total);
  float* means = channel_floats(operation, "running_mean", running_mean, moments.channels);
  float* variances = channel_floats(operation, "running_var", running_var, moments.channels);
  require_shape(operation, "batches", batches, {});
  auto* counter = elements<std::int64_t>(operation, "batches", batches);
  const double count = moments.count(), weight = momentum;
  if (!(count > 0)) return;
  for (std::int64_t c = 0; c < moments.channels; ++c) {
    const double distance = moments.sums()[c] / count;
    const double unbiased =
        std::max(0.0, moments.squares()[c] - count * distance * distance) / std::max(count - 1, 1.0);
    means[c] = static_cast<float>(means[c] + weight * distance);
    variances[c] = static_cast<float>((1 - weight) * variances[c] + weight * unbiased);
  }
  ++*counter;
}

}  // namespace lockstep::kernels
