#include "ops/batch_norm.h"

#include "lockstep/ops/check.h"

namespace lockstep::ops {
namespace {

/// Checks the operands of one value per channel.
class PerChannel {
 public:
  PerChannel(const char* operation, const char* name, const Tensor& activations) : operation_(operation) {
    require_channels(operation, name, activations);
    channels_ = activations.size(1);
  }
  const PerChannel& of(const char* name, const Tensor& tensor) const {
    if (tensor) require_shape(operation_, name, tensor, {channels_});
    return *this;
  }
  const PerChannel& norm(const ChannelNorm& by) const {
    return of("mean", by.mean).of("inv_std", by.inv_std).of("weight", by.weight).of("bias", by.bias);
  }
  const PerChannel& pairs(const char* name, const Tensor& tensor) const {
    require_shape(operation_, name, tensor, {2, channels_});
    return *this;
  }

 private:
  const char* operation_;
  std::int64_t channels_;
};

/// Checks a total and a tensor with one value per channel.
void require_channels_of_total(const char* operation, const Tensor& total, const char* name,
                               const Tensor& per_channel) {
  require_shape(operation, "the total", total, {2 * per_channel.numel() + 1});
  require_shape(operation, name, per_channel, {per_channel.numel()});
}

}  // namespace

void ChannelMoments::check() const {
  PerChannel(name, "x", x).of("centre", centre);
  require_channels_of_total(name, total, "centre", centre);
}

void BatchNorm::check() const {
  require_alike(name, "y", y, x);
  if (shortcut) require_alike(name, "the shortcut", shortcut, x);
  PerChannel(name, "x", x).norm(norm);
}

void BatchNormBackwardSums::check() const {
  require_alike(name, "x", x, dy);
  PerChannel(name, "dy", dy).norm(norm).pairs("sums", sums);
}

void BatchNormBackwardInput::check() const {
  if (count) require_numel(name, "count", count, 1);
  require_alike(name, "dx", dx, dy);
  require_alike(name, "x", x, dy);
  PerChannel(name, "dy", dy).norm(norm).pairs("sums", sums);
}

void BatchNormGatedBackwardSums::check() const {
  require_alike(name, "y", y, dy);
  require_alike(name, "x", x, dy);
  require_alike(name, "gated", gated, dy);
  if (second_grad) require_alike(name, "second_grad", second_grad, dy);
  PerChannel(name, "dy", dy).of("mean", mean).of("inv_std", inv_std).pairs("sums", sums);
}

void MomentsLackDigits::check() const {
  if (!lack) throw UsageError("{}: the pointer to the result is null", name);
  if (total.numel() % 2 == 1) return;
  throw UsageError("{}: the total has {} elements; 2 * channels + 1 are needed", name, total.numel());
}

void BatchStatistics::check() const {
  if (total) require_channels_of_total(name, total, "mean", mean);
  for (const auto& [member, tensor] :
       {std::pair{"centre", &centre}, {"running_var", &running_var}, {"inv_std", &inv_std}})
    require_shape(name, member, *tensor, mean.shape());
}

void MoveCentre::check() const {
  require_channels_of_total(name, total, "from", from);
  require_shape(name, "to", to, from.shape());
}

void UpdateRunning::check() const {
  require_channels_of_total(name, total, "running_mean", running_mean);
  require_shape(name, "running_var", running_var, running_mean.shape());
  require_shape(name, "batches", batches, {});
}

}  // namespace lockstep::ops
