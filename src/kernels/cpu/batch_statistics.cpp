// What batch norm makes of its moments: a mean and a deviation per channel, and the running ones.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "lockstep/ops/batch_norm.h"

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

Moments moments_of(const Tensor& total) { return {total.data<double>(), (total.numel() - 1) / 2}; }

}  // namespace

void moments_lack_digits(CpuBackend&, const ops::MomentsLackDigits& op) {
  // float32 parts carry a relative error of 1e-7 of (distance^2 + variance).
  constexpr double squared_distance_limit = 16;  // in variances
  const Moments moments = moments_of(op.total);
  const double n = moments.count();
  *op.lack = false;
  if (!(n > 0)) return;
  for (std::int64_t c = 0; c < moments.channels; ++c) {
    const double distance = moments.sums()[c] / n;
    const double variance = moments.squares()[c] / n - distance * distance;
    if (!(distance * distance <= squared_distance_limit * (variance + op.eps))) *op.lack = true;
  }
}

void batch_statistics(CpuBackend&, const ops::BatchStatistics& op) {
  const std::int64_t channels = op.mean.numel();
  const float* centres = op.centre.data<float>();
  const float* variances = op.running_var.data<float>();
  float* means = op.mean.data<float>();
  float* inv_stds = op.inv_std.data<float>();
  const Moments moments = op.total ? moments_of(op.total) : Moments{nullptr, channels};
  if (!op.total || !(moments.count() > 0)) {
    std::copy_n(centres, channels, means);
    for (std::int64_t c = 0; c < channels; ++c) {
      const double variance = variances[c];
      inv_stds[c] = static_cast<float>(1 / std::sqrt(variance + op.eps));
    }
    return;
  }
  const double count = moments.count();
  for (std::int64_t c = 0; c < channels; ++c) {
    const double distance = moments.sums()[c] / count;
    const double variance = std::max(0.0, moments.squares()[c] / count - distance * distance);
    means[c] = static_cast<float>(centres[c] + distance);
    inv_stds[c] = static_cast<float>(1 / std::sqrt(variance + op.eps));
  }
}

// sum (x - b) = sum (x - a) + n (a - b), and so the squares.
void move_centre(CpuBackend&, const ops::MoveCentre& op) {
  const Moments moments = moments_of(op.total);
  const float* before = op.from.data<float>();
  const float* after = op.to.data<float>();
  const double n = moments.count();
  for (std::int64_t c = 0; c < moments.channels; ++c) {
    const double shift = static_cast<double>(before[c]) - after[c];
    moments.squares()[c] += 2 * shift * moments.sums()[c] + n * shift * shift;
    moments.sums()[c] += n * shift;
  }
}

void update_running(CpuBackend&, const ops::UpdateRunning& op) {
  const Moments moments = moments_of(op.total);
  float* means = op.running_mean.data<float>();
  float* variances = op.running_var.data<float>();
  auto* counter = op.batches.data<std::int64_t>();
  const double count = moments.count(), weight = op.momentum;
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

void enter_batch_statistics(CpuBackend& cpu) {
  cpu.enter<&moments_lack_digits>();
  cpu.enter<&batch_statistics>();
  cpu.enter<&move_centre>();
  cpu.enter<&update_running>();
}

}  // namespace lockstep::kernels
