// What batch norm makes of its moments; the formulas of cpu/batch_statistics.cpp, a thread a channel.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "lockstep/ops/batch_norm.h"

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

void batch_statistics(CudaBackend& gpu, const ops::BatchStatistics& op) {
  const Launch on = gpu.launch();
  const std::int64_t channels = op.mean.numel();
  if (channels == 0) return;
  statistics<<<grid_for(channels, 128, on), 128, 0, on.stream>>>(
      data_or_null<double>(op.total), channels, op.centre.data<float>(), op.running_var.data<float>(), op.eps,
      op.mean.data<float>(), op.inv_std.data<float>());
}

void move_centre(CudaBackend& gpu, const ops::MoveCentre& op) {
  const Launch on = gpu.launch();
  const std::int64_t channels = op.from.numel();
  if (channels == 0) return;
  move<<<grid_for(channels, 128, on), 128, 0, on.stream>>>(op.total.data<double>(), channels,
                                                           op.from.data<float>(), op.to.data<float>());
}

void update_running(CudaBackend& gpu, const ops::UpdateRunning& op) {
  const Launch on = gpu.launch();
  const std::int64_t channels = op.running_mean.numel();
  update<<<grid_for(channels, 128, on), 128, 0, on.stream>>>(
      op.total.data<double>(), channels, static_cast<double>(op.momentum), op.running_mean.data<float>(),
      op.running_var.data<float>(), op.batches.data<std::int64_t>());
}

// Moments are summed in float64 from the first element on, wherever their centre lies.
void moments_lack_digits(CudaBackend&, const ops::MomentsLackDigits& op) { *op.lack = false; }

}  // namespace

void enter_batch_statistics(CudaBackend& gpu) {
  gpu.enter<&batch_statistics>();
  gpu.enter<&move_centre>();
  gpu.enter<&update_running>();
  gpu.enter<&moments_lack_digits>();
}

}  // namespace lockstep::kernels
