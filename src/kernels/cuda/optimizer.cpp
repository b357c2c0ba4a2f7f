// Sums of gradients, optimizer steps and moving averages.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/operands.h"

namespace lockstep::kernels {
namespace {

// In the form and order PyTorch applies them, as on the CPU.
AdamWFactors factors_of(const AdamWStep& step) {
  const auto steps = static_cast<double>(step.step);
  return {.decay = static_cast<float>(1.0 - step.lr * step.weight_decay),
          .gradient = step.gradient_factor,
          .beta1 = static_cast<float>(step.beta1),
          .beta2 = static_cast<float>(step.beta2),
          .fresh1 = static_cast<float>(1.0 - step.beta1),
          .fresh2 = static_cast<float>(1.0 - step.beta2),
          .correction2 = static_cast<float>(std::sqrt(1.0 - std::pow(step.beta2, steps))),
          .eps = static_cast<float>(step.eps),
          .rate = static_cast<float>(step.lr / (1.0 - std::pow(step.beta1, steps)))};
}

SgdFactors factors_of(const SgdStep& step) {
  return {.rate = static_cast<float>(step.lr),
          .momentum = static_cast<float>(step.momentum),
          .decay = static_cast<float>(step.weight_decay),
          .gradient = step.gradient_factor,
          .kind = step.momentum == 0 ? Momentum::none
                  : step.first       ? Momentum::first
                                     : Momentum::plain,
          .nesterov = step.nesterov};
}

float* alike(const Operands& args, const char* name, const Tensor& tensor, const Tensor& value) {
  float* const data = args.plain_floats(name, tensor);
  require_shape(args.operation, name, tensor, value.shape());
  return data;
}

/// As many as fit into the pass.
template <class Entry>
void add_averages(const Operands& args, const Tensor& value, std::span<const EmaTarget> ema, Entry& entry) {
  entry.averages = 0;
  for (const EmaTarget& target : ema) {
    float* const average = alike(args, "an EMA average", target.average, value);
    if (entry.averages == most_averages) continue;
    const auto place = static_cast<std::size_t>(entry.averages++);
    entry.average[place] = average;
    entry.keep[place] = static_cast<float>(target.decay);
    entry.fresh[place] = static_cast<float>(1.0 - target.decay);
  }
}

}  // namespace

void CudaBackend::accumulate(const Tensor& into, const Tensor& x) {
  const Operands args{"accumulate", device()};
  require_alike(args.operation, "x", x, into);
  if (!launch_accumulate(launch(), into.dtype(), args.raw("the sum", into), x.dtype(), args.raw("x", x),
                         into.stored_numel())) {
    throw UsageError("accumulate on a GPU: {} is not added to {}", to_string(x.dtype()),
                     to_string(into.dtype()));
  }
}

void CudaBackend::block_sums_of_squares(const Tensor& x, const Tensor& blocks) {
  const Operands args{"block_sums_of_squares", device()};
  const float* const from = args.plain_floats("x", x);
  const std::int64_t count = x.numel(), needed = (count + 4095) / 4096;
  if (blocks.numel() != needed) {
    throw UsageError("block_sums_of_squares: {} elements make {} blocks, not {}", count, needed,
                     blocks.numel());
  }
  if (needed == 0) return;
  launch_block_sums_of_squares(launch(), from, count, args.elements<double>("the blocks", blocks));
}

void CudaBackend::adamw(std::span<const AdamWUpdate> updates) {
  const Operands args{"adamw", device()};
  adamw_entries_.clear();
  for (const AdamWUpdate& update : updates) {
    if (update.step.step < 1) throw UsageError("adamw: steps count from 1, not {}", update.step.step);
    AdamWEntry& entry = adamw_entries_.emplace_back();
    entry.factors = factors_of(update.step);
    entry.count = update.value.numel();
    entry.value = args.plain_floats("value", update.value);
    entry.gradient = alike(args, "gradient", update.gradient, update.value);
    entry.first = alike(args, "exp_avg", update.exp_avg, update.value);
    entry.second = alike(args, "exp_avg_sq", update.exp_avg_sq, update.value);
    add_averages(args, update.value, update.ema, entry);
  }
  launch_adamw(launch(), adamw_entries_);
  for (const AdamWUpdate& update : updates) average_rest(update.value, update.ema);
}

void CudaBackend::sgd(std::span<const SgdUpdate> updates) {
  const Operands args{"sgd", device()};
  sgd_entries_.clear();
  for (const SgdUpdate& update : updates) {
    SgdEntry& entry = sgd_entries_.emplace_back();
    entry.factors = factors_of(update.step);
    entry.count = update.value.numel();
    entry.value = args.plain_floats("value", update.value);
    entry.gradient = alike(args, "gradient", update.gradient, update.value);
    entry.first = update.step.momentum == 0
                      ? nullptr
                      : alike(args, "momentum_buffer", update.momentum_buffer, update.value);
    entry.second = nullptr;
    add_averages(args, update.value, update.ema, entry);
  }
  launch_sgd(launch(), sgd_entries_);
  for (const SgdUpdate& update : updates) average_rest(update.value, update.ema);
}

void CudaBackend::average_rest(const Tensor& value, std::span<const EmaTarget> averages) {
  for (const EmaTarget& target :
       averages.subspan(std::min(averages.size(), static_cast<std::size_t>(most_averages))))
    ema(value, target);
}

void CudaBackend::ema(const Tensor& value, const EmaTarget& target) {
  const Operands args{"ema", device()};
  const float* const from = args.plain_floats("value", value);
  float* const to = alike(args, "the average", target.average, value);
  launch_ema(launch(), from, to, static_cast<float>(target.decay), static_cast<float>(1.0 - target.decay),
             value.numel());
}

}  // namespace lockstep::kernels
