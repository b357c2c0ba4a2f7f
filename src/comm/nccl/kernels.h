// The kernels of device exchanges. Light: the .cu file includes it.
#pragma once

#include <cuda_runtime_api.h>

#include "comm/nccl/device_calls.h"

namespace lockstep::comm {

/// Where kernels run.
struct DeviceLaunch {
  cudaStream_t stream = nullptr;
  int multiprocessors = 1;
};

/// As the methods of DeviceCalls. Each returns what its launch did.
cudaError_t launch_add(const TreeAddition& addition, const DeviceLaunch& on);
cudaError_t launch_narrow(const std::byte* values, std::byte* narrowed, std::int64_t count, DType wire,
                          const DeviceLaunch& on);
cudaError_t launch_widen(const std::byte* narrowed, std::byte* values, std::int64_t count, DType wire,
                         const DeviceLaunch& on);

}  // namespace lockstep::comm
