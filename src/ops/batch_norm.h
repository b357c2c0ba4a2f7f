// Batch norm, in parts between which ranks communicate: moments, (their sum over ranks), normalise; likewise
// the backward. x, y and their gradients: [N, C, H, W] in any channel block, or [N, C]. mean, inv_std,
// weight, bias, centres: [C]. moments, sums: [2, C].
#pragma once

#include "lockstep/ops/math.h"
#include "lockstep/ops/operation.h"

namespace lockstep::ops {

/// total: float64 [2 C + 1], for each channel the sum of (x - centre), then of (x - centre)^2, and the number
/// of elements of a channel (0 without channels).
struct ChannelMoments {
  static constexpr const char* name = "channel_moments";
  Tensor x, centre, total;

  std::int64_t count() const { return x.size(1) == 0 ? 0 : x.numel() / x.size(1); }

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x).blocked(), in("centre", op.centre, float32).shared(),
         out("the total", op.total, float64).per_part());
  }
  void check() const;
};

/// (x - mean[c]) * inv_std[c] * weight[c] + bias[c]
struct ChannelNorm {
  Tensor mean, inv_std, weight = {}, bias = {};

  static void operands(auto& by, auto&& each) {
    each(in("mean", by.mean, float32).per_part(), in("inv_std", by.inv_std, float32).per_part(),
         in("weight", by.weight, float32).shared().optional(),
         in("bias", by.bias, float32).shared().optional());
  }
};

/// y = norm(x) + shortcut, or with `relu` max(0, norm(x) + shortcut), in the same passes over memory.
struct BatchNorm {
  static constexpr const char* name = "batch_norm";
  Tensor x;
  ChannelNorm norm;
  Tensor shortcut = {};
  bool relu = false;
  Tensor y;

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x).blocked(), in("the norm", op.norm),
         in("the shortcut", op.shortcut).blocked().optional(), out("y", op.y).blocked());
  }
  void check() const;
};

// Backwards. With `relu`, dy is masked by the ReLU after the norm, which is computed again from x; there must
// be no shortcut.

/// sums: per channel the sum of dy and of dy * (x - mean) * inv_std. (They are dbias and dweight.)
struct BatchNormBackwardSums {
  static constexpr const char* name = "batch_norm_backward_sums";
  Tensor dy, x;
  ChannelNorm norm;
  bool relu = false;
  Tensor sums;

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy).blocked(), in("x", op.x).blocked(), in("the norm", op.norm),
         out("sums", op.sums, float64).per_part());
  }
  void check() const;
};

/// Training: dx = weight inv_std (dy - sums[0] / count - xhat sums[1] / count), with one float64 `count`, the
/// elements per channel of the sums. Absent or 0: the statistics were constants (evaluation), and dx = weight
/// inv_std dy.
struct BatchNormBackwardInput {
  static constexpr const char* name = "batch_norm_backward_input";
  Tensor dy, x;
  ChannelNorm norm;
  bool relu = false;
  Tensor sums, count, dx;

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy).blocked(), in("x", op.x).blocked(), in("the norm", op.norm),
         in("sums", op.sums, float64).per_part(), in("count", op.count, float64).per_part().optional(),
         out("dx", op.dx).blocked());
  }
  void check() const;
};

/// gated = dy + second_grad where y > 0, else 0, rounded to its type. It is the shortcut's gradient and the
/// dy of BatchNormBackwardInput. sums: BatchNormBackwardSums of `gated`.
struct BatchNormGatedBackwardSums {
  static constexpr const char* name = "batch_norm_gated_backward_sums";
  Tensor dy, second_grad, y, x, mean, inv_std, gated, sums;

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy).blocked(), in("second_grad", op.second_grad).blocked().optional(),
         in("y", op.y).blocked(), in("x", op.x).blocked(), in("mean", op.mean, float32).per_part(),
         in("inv_std", op.inv_std, float32).per_part(), out("gated", op.gated).blocked(),
         out("sums", op.sums, float64).per_part());
  }
  void check() const;
};

// Totals: float64 [2 C + 1], the moments of C channels, then the number of elements that a channel has.

/// lack: whether the centre of these moments is so far from the mean that their squares hide the variance.
/// Then they must be computed again about the mean. Only the CPU sets it, because its partial sums are
/// float32.
struct MomentsLackDigits {
  static constexpr const char* name = "moments_lack_digits";
  Tensor total;
  float eps = 0;
  bool* lack = nullptr;

  static void operands(auto& op, auto&& each) { each(in("the total", op.total, float64)); }
  void check() const;
};

/// mean and inv_std = 1 / sqrt(variance + eps) of moments about `centre`. If the total is absent or its count
/// is 0: of the running statistics; `centre` is the running mean.
struct BatchStatistics {
  static constexpr const char* name = "batch_statistics";
  Tensor total, centre, running_var;
  float eps = 0;
  Tensor mean, inv_std;

  static void operands(auto& op, auto&& each) {
    each(in("the total", op.total, float64).per_part().optional(), in("centre", op.centre, float32).shared(),
         in("running_var", op.running_var, float32).shared(), out("mean", op.mean, float32).per_part(),
         out("inv_std", op.inv_std, float32).per_part());
  }
  void check() const;
};

/// The same moments about another centre, in place.
struct MoveCentre {
  static constexpr const char* name = "move_centre";
  Tensor total, from, to;

  static void operands(auto& op, auto&& each) {
    each(in_out("the total", op.total, float64), in("from", op.from, float32), in("to", op.to, float32));
  }
  void check() const;
};

/// running = (1 - momentum) running + momentum new, from moments about running_mean, with the unbiased
/// variance. batches: one int64, incremented. A total whose count is 0 changes nothing.
struct UpdateRunning {
  static constexpr const char* name = "update_running";
  Tensor total;
  float momentum = 0;
  Tensor running_mean, running_var, batches;

  static void operands(auto& op, auto&& each) {
    each(in("the total", op.total, float64), in_out("running_mean", op.running_mean, float32),
         in_out("running_var", op.running_var, float32), in_out("batches", op.batches, int64));
  }
  void check() const;
};

/// The sums of distances from the centre per channel, then of their squares, then the count.
struct TotalMoments {
  double* data;  ///< null: no total
  std::int64_t channels;

  /// Reads sums [2, channels] and the count after them.
  TotalMoments(const Tensor& total, std::int64_t channels_)
      : data(total ? total.data<double>() : nullptr), channels(channels_) {}

  LOCKSTEP_ON_ANY_DEVICE double& sum(std::int64_t c) const { return data[c]; }
  LOCKSTEP_ON_ANY_DEVICE double& squares(std::int64_t c) const { return data[channels + c]; }
  LOCKSTEP_ON_ANY_DEVICE double count() const { return data ? data[2 * channels] : 0; }
};

// Devices call item(i) for every i in [0, item.items()).

/// The computation of one channel, in kernels of CPU and GPU.
struct BatchStatisticsItem {
  TotalMoments moments;
  const float *centre, *running_var;  ///< of all channels
  double eps;
  float *mean, *inv_std;  ///< of all channels

  /// Takes the pointers of the operation.
  explicit BatchStatisticsItem(const BatchStatistics& op)
      : moments(op.total, op.mean.numel()),
        centre(op.centre.data<float>()),
        running_var(op.running_var.data<float>()),
        eps(static_cast<double>(op.eps)),
        mean(op.mean.data<float>()),
        inv_std(op.inv_std.data<float>()) {}

  std::int64_t items() const { return moments.channels; }  ///< channels
  LOCKSTEP_ON_ANY_DEVICE void operator()(std::int64_t c) const {
    const double n = moments.count();
    float value = centre[c];
    double variance = static_cast<double>(running_var[c]);
    if (n > 0) {
      const double distance = moments.sum(c) / n;
      value = static_cast<float>(static_cast<double>(value) + distance);
      variance = larger(0.0, moments.squares(c) / n - distance * distance);
    }
    mean[c] = value;
    inv_std[c] = static_cast<float>(1 / square_root(variance + eps));
  }
};

/// sum (x - b) = sum (x - a) + n (a - b), and so the squares.
struct MoveCentreItem {
  TotalMoments moments;
  const float *from, *to;  ///< of all channels

  /// Takes the pointers of the operation.
  explicit MoveCentreItem(const MoveCentre& op)
      : moments(op.total, op.from.numel()), from(op.from.data<float>()), to(op.to.data<float>()) {}

  std::int64_t items() const { return moments.channels; }  ///< channels
  LOCKSTEP_ON_ANY_DEVICE void operator()(std::int64_t c) const {
    const double n = moments.count(), shift = static_cast<double>(from[c]) - static_cast<double>(to[c]);
    moments.squares(c) += 2 * shift * moments.sum(c) + n * shift * shift;
    moments.sum(c) += n * shift;
  }
};

/// The update of each channel, and last of the counter.
struct UpdateRunningItem {
  TotalMoments moments;
  double momentum;
  float *mean, *variance;  ///< of all channels
  std::int64_t* batches;

  /// Takes the pointers of the operation.
  explicit UpdateRunningItem(const UpdateRunning& op)
      : moments(op.total, op.running_mean.numel()),
        momentum(static_cast<double>(op.momentum)),
        mean(op.running_mean.data<float>()),
        variance(op.running_var.data<float>()),
        batches(op.batches.data<std::int64_t>()) {}

  std::int64_t items() const { return moments.channels + 1; }  ///< channels, and the count
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
