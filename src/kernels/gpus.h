// The GPUs of this machine, and what this build can do with them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/tensor/storage.h"

namespace lockstep::kernels {

struct Gpu {
  std::string name;  ///< "NVIDIA H200"
  std::size_t memory_bytes = 0;
  int major = 0, minor = 0;  ///< compute capability
  /// "NVIDIA H200 (sm_90, 139.8 GiB)"
  std::string describe() const;
};

struct Gpus {
  bool built = false;           ///< this build computes on GPUs
  std::vector<Gpu> visible;     ///< to this process, in the order of their indices
  std::string problem;          ///< why none can be used; empty where there are none, or no driver
  std::string remedy;           ///< what helps against the problem
  std::string driver, runtime;  ///< versions of CUDA: what the driver knows, and what this build uses; "13.0"
};

/// Throws nothing but std::bad_alloc.
Gpus find_gpus();

/// What a device is called: "cpu", "NVIDIA H200".
std::string name_of(const Device& device);

}  // namespace lockstep::kernels
