// Turns the error codes of CUDA into FailureErrors.
#pragma once

#include <cuda_runtime_api.h>

#include "lockstep/base/error.h"

namespace lockstep::comm {

/// Throws FailureError with the call's name, CUDA's own text and the rank unless it succeeded.
inline void check_cuda(cudaError_t status, const char* call, int rank) {
  if (status == cudaSuccess) return;
  throw FailureError("{} failed on rank {}: {} ({})", call, rank, cudaGetErrorString(status),
                     cudaGetErrorName(status));
}

}  // namespace lockstep::comm
