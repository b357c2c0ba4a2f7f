// The GPUs of this machine, and what this build can do with them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tensor/storage.h"

namespace lockstep::kernels {

/// What a build has for GPUs of one compute capability.
struct GpuCode {
  bool runs = true;    ///< machine code, or PTX, which the driver compiles for it
  std::string remark;  ///< without machine code: what follows
  std::string remedy;  ///< what helps against that
};
/// In a build for GPUs. architectures: as CMAKE_CUDA_ARCHITECTURES has them ("80-real 90a").
GpuCode code_for(std::string_view architectures, int major, int minor);
/// Those of this build, if it is one for GPUs.
const char* compiled_architectures();

/// The greatest bf16 TFLOP/s of a GPU by its name, without sparsity: NVIDIA's data sheets. None of one that
/// is not known, and of a part of one (MIG, vGPU).
std::optional<double> bf16_tflops_of(std::string_view gpu);

struct Gpu {
  std::string name;  ///< "NVIDIA H200"
  std::size_t memory_bytes = 0;
  int major = 0, minor = 0;      ///< compute capability
  GpuCode code = {};             ///< for it
  std::string describe() const;  ///< "NVIDIA H200 (sm_90, 139.8 GiB)"
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
