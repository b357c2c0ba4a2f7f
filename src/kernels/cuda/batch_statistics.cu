// What batch norm makes of its moments; the formulas of cpu/batch_statistics.cpp, a thread a channel.
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/kernels.h"

namespace lockstep::kernels {
namespace {

__global__ void statistics(const double* total, std::int64_t channels, const float* centre,
                           const float* running_var, float eps, float* mean, float* inv_std) {
  for (std::int64_t c = global_thread(); c < channels; c += global_threads()) {
    const double count = total ? total[2 * channels] : 0;
    if (!(count > 0)) {
      mean[c] = centre[c];
      inv_std[c] =
          static_cast<float>(1 / sqrt(static_cast<double>(running_var[c]) + static_cast<double>(eps)));
      continue;
    }
    const double distance = total[c] / count;
    const double variance = fmax(0.0, total[channels + c] / count - distance * distance);
    mean[c] = static_cast<float>(static_cast<double>(centre[c]) + distance);
    inv_std[c] = static_cast<float>(1 / sqrt(variance + static_cast<double>(eps)));
  }
}

__global__ void move(double* total, std::int64_t channels, const float* from, const float* to) {
  const double count = total[2 * channels];
  for (std::int64_t c = global_thread(); c < channels; c += global_threads()) {
    const double shift = static_cast<double>(from[c]) - static_cast<double>(to[c]);
    total[channels + c] += 2 * shift * total[c] + count * shift * shift;
    total[c] += count * shift;
  }
}

__global__ void update(const double* total, std::int64_t channels, double momentum, float* running_mean,
                       float* running_var, std::int64_t* batches) {
  const double count = total[2 * channels];
  if (!(count > 0)) return;
  for (std::int64_t c = global_thread(); c < channels; c += global_threads()) {
    const double distance = total[c] / count;
    const double unbiased =
        fmax(0.0, total[channels + c] - count * distance * distance) / fmax(count - 1, 1.0);
    running_mean[c] = static_cast<float>(static_cast<double>(running_mean[c]) + momentum * distance);
    running_var[c] =
        static_cast<float>((1 - momentum) * static_cast<double>(running_var[c]) + momentum * unbiased);
  }
  if (global_thread() == 0) ++*batches;
}

}  // namespace

void launch_batch_statistics(const Launch& on, const double* total, std::int64_t channels,
                             const float* centre, const float* running_var, float eps, float* mean,
                             float* inv_std) {
  if (channels == 0) return;
  statistics<<<grid_for(channels, 128, on), 128, 0, on.stream>>>(total, channels, centre, running_var, eps,
                                                                 mean, inv_std);
  check_launch("batch_statistics", on);
}

void launch_move_centre(const Launch& on, double* total, std::int64_t channels, const float* from,
                        const float* to) {
  if (channels == 0) return;
  move<<<grid_for(channels, 128, on), 128, 0, on.stream>>>(total, channels, from, to);
  check_launch("move_centre", on);
}

void launch_update_running(const Launch& on, const double* total, std::int64_t channels, float momentum,
                           float* running_mean, float* running_var, std::int64_t* batches) {
  update<<<grid_for(channels, 128, on), 128, 0, on.stream>>>(total, channels, static_cast<double>(momentum),
                                                             running_mean, running_var, batches);
  check_launch("update_running", on);
}

}  // namespace lockstep::kernels
