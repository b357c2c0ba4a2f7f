// What batch norm makes of its moments (ops/batch_statistics.h), a thread an item.
#include "lockstep/ops/batch_statistics.h"

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"

namespace lockstep::kernels {
namespace {

template <class Item, class Operation>
void each_item(CudaBackend& gpu, const Operation& op) {
  const Item item(op);
  for_elements(gpu.launch(), item.items(), item, 128);
}

// Moments are summed in float64 from the first element on, wherever their centre lies.
void moments_lack_digits(CudaBackend&, const ops::MomentsLackDigits& op) { *op.lack = false; }

}  // namespace

void enter_batch_statistics(CudaBackend& gpu) {
  gpu.enter<&each_item<ops::BatchStatisticsItem, ops::BatchStatistics>,
            &each_item<ops::MoveCentreItem, ops::MoveCentre>,
            &each_item<ops::UpdateRunningItem, ops::UpdateRunning>, &moments_lack_digits>();
}

}  // namespace lockstep::kernels
