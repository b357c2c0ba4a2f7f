// What batch norm makes of the moments in a total, for one channel at a time: written once for CPU and GPU.
#pragma once

#include "lockstep/ops/batch_norm.h"
#include "lockstep/ops/math.h"

namespace lockstep::ops {

/// Per channel the sum of the distances from the centre, then of their squares, then the count.
struct TotalMoments {
  double* data;  ///< null: there is no total
  std::int64_t channels;

  TotalMoments(const Tensor& total, std::int64_t channels_)
      : data(total ? total.data<double>() : nullptr), channels(channels_) {}

  LOCKSTEP_ON_ANY_DEVICE double& sum(std::int64_t c) const { return data[c]; }
  LOCKSTEP_ON_ANY_DEVICE double& squares(std::int64_t c) const { return data[channels + c]; }
  LOCKSTEP_ON_ANY_DEVICE double count() const { return data ? data[2 * channels] : 0; }
};

// Each: item(i) for every i below items().

struct BatchStatisticsItem {
  TotalMoments moments;
  const float *centre, *running_var;
  double eps;
  float *mean, *inv_std;

  explicit BatchStatisticsItem(const BatchStatistics& op)
      : moments(op.total, op.mean.numel()),
        centre(op.centre.data<float>()),
        running_var(op.running_var.data<float>()),
        eps(static_cast<double>(op.eps)),
        mean(op.mean.data<float>()),
        inv_std(op.inv_std.data<float>()) {}

  std::int64_t items() const { return moments.channels; }
  LOCKSTEP_ON_ANY_DEVICE void operator()(std::int64_t c) const {
    const double n = moments.count();
    float found = centre[c];
    double variance = static_cast<double>(running_var[c]);
    if (n > 0) {
      const double distance = moments.sum(c) / n;
      found = static_cast<float>(static_cast<double>(found) + distance);
      variance = larger(0.0, moments.squares(c) / n - distance * distance);
    }
    mean[c] = found;
    inv_std[c] = static_cast<float>(1 / square_root(variance + eps));
  }
};

/// sum (x - b) = sum (x - a) + n (a - b), and so the squares.
struct MoveCentreItem {
  TotalMoments moments;
  const float *from, *to;

  explicit MoveCentreItem(const MoveCentre& op)
      : moments(op.total, op.from.numel()), from(op.from.data<float>()), to(op.to.data<float>()) {}

  std::int64_t items() const { return moments.channels; }
  LOCKSTEP_ON_ANY_DEVICE void operator()(std::int64_t c) const {
    const double n = moments.count(), shift = static_cast<double>(from[c]) - static_cast<double>(to[c]);
    moments.squares(c) += 2 * shift * moments.sum(c) + n * shift * shift;
    moments.sum(c) += n * shift;
  }
};

/// Of each channel, and last of the counter.
struct UpdateRunningItem {
  TotalMoments moments;
  double momentum;
  float *mean, *variance;
  std::int64_t* batches;

  explicit UpdateRunningItem(const UpdateRunning& op)
      : moments(op.total, op.running_mean.numel()),
        momentum(static_cast<double>(op.momentum)),
        mean(op.running_mean.data<float>()),
        variance(op.running_var.data<float>()),
        batches(op.batches.data<std::int64_t>()) {}

  std::int64_t items() const { return moments.channels + 1; }
  LOCKSTEP_ON_ANY_DEVICE void operator()(std::int64_t c) const {
    const double n = moments.count();
    if (!(n > 0)) return;
    if (c == moments.channels) {
      ++*batches;
      return;
    }
    const double distance = moments.sum(c) / n;
    const double unbiased = larger(0.0, moments.squares(c) - n * distance * distance) / larger(n - 1, 1.0);
    mean[c] = static_cast<float>(static_cast<double>(mean[c]) + momentum * distance);
    variance[c] = static_cast<float>((1 - momentum) * static_cast<double>(variance[c]) + momentum * unbiased);
  }
};

}  // namespace lockstep::ops
