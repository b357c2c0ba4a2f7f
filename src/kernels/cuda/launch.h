// Where kernels run.
#pragma once

#include <cuda_runtime_api.h>

namespace lockstep::kernels {

struct Launch {
  cudaStream_t stream = nullptr;
  int multiprocessors = 1;
};

}  // namespace lockstep::kernels
