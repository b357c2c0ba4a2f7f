// What batch norm makes of its moments: a mean and a deviation per channel, and the running ones.
#include "lockstep/ops/batch_statistics.h"

#include "kernels/cpu/cpu_backend.h"

namespace lockstep::kernels {
namespace {

template <class Item, class Operation>
void each_item(CpuBackend&, const Operation& op) {
  const Item item(op);
  for (std::int64_t i = 0; i < item.items(); ++i) item(i);
}

void moments_lack_digits(CpuBackend&, const ops::MomentsLackDigits& op) {
  // float32 parts carry a relative error of 1e-7 of (distance^2 + variance).
  constexpr double squared_distance_limit = 16;  // in variances
  const ops::TotalMoments moments(op.total, (op.total.numel() - 1) / 2);
  const double n = moments.count();
  *op.lack = false;
  if (!(n > 0)) return;
  for (std::int64_t c = 0; c < moments.channels; ++c) {
    const double distance = moments.sum(c) / n;
    const double variance = moments.squares(c) / n - distance * distance;
    if (!(distance * distance <= squared_distance_limit * (variance + op.eps))) *op.lack = true;
  }
}

}  // namespace

void enter_batch_statistics(CpuBackend& cpu) {
  cpu.enter<&moments_lack_digits, &each_item<ops::BatchStatisticsItem, ops::BatchStatistics>,
            &each_item<ops::MoveCentreItem, ops::MoveCentre>,
            &each_item<ops::UpdateRunningItem, ops::UpdateRunning>>();
}

}  // namespace lockstep::kernels
