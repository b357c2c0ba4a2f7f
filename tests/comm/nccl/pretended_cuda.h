// What a test has the pretended CUDA do.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace lockstep::test {

struct PretendedCuda {
  cudaError_t memory = cudaSuccess;   ///< what asking for memory ends with on this rank
  cudaError_t streams = cudaSuccess;  ///< what making a stream does
  std::size_t free_bytes = std::size_t{1} << 40;
};
PretendedCuda& pretended_cuda();

}  // namespace lockstep::test
