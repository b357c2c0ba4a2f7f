// The kernels of device collectives. It includes little, for the .cu file.
#pragma once

#include <cuda_runtime_api.h>

#include "comm/nccl/device_collectives.h"

namespace lockstep::comm {

/// Where kernels run.
struct DeviceLaunch {
  cudaStream_t stream = nullptr;
  int multiprocessors = 1;
};

/// Like the methods of DeviceCalls. Each returns the status of its launch.
cudaError_t launch_add(const TreeAddition& addition, const DeviceLaunch& on);
cudaError_t launch_cast_to(const std::byte* values, std::byte* cast, std::int64_t count, DType comm_dtype,
                           const DeviceLaunch& on);
cudaError_t launch_cast_from(const std::byte* cast, std::byte* values, std::int64_t count, DType comm_dtype,
                             const DeviceLaunch& on);

}  // namespace lockstep::comm
