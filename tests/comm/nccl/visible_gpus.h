#pragma once

#include <cuda_runtime_api.h>

namespace lockstep::test {

/// 0 without a driver, too.
inline int visible_gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

}  // namespace lockstep::test
