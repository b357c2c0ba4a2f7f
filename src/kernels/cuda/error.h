// Errors of CUDA, cuBLASLt and cuDNN as FailureErrors that name call, device and what to do.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/libraries.h"

namespace lockstep::kernels {

void check(cudaError_t status, const char* call, int device);
void check(cublasStatus_t status, const char* call, int device);
void check(cudnnStatus_t status, const char* call, int device);

/// Of memory: says how much was asked for.
void check_allocation(cudaError_t status, const char* call, std::size_t bytes, int device);

}  // namespace lockstep::kernels
