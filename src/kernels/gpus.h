// The GPUs of this node, and the support of this build for them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tensor/storage.h"

namespace lockstep::kernels {

/// The code of a build for GPUs of one compute capability.
struct GpuCode {
  bool runs = true;    ///< machine code, or PTX, which the driver compiles for it
  std::string remark;  ///< without machine code: the consequence
  std::string remedy;  ///< the remedy
};
/// The code in a build for GPUs. architectures: as in CMAKE_CUDA_ARCHITECTURES ("80-real 90a").
GpuCode code_for(std::string_view architectures, int major, int minor);
/// The architectures of this build, if it is for GPUs.
const char* compiled_architectures();

/// The peak bf16 TFLOP/s of a GPU by its name, without sparsity: NVIDIA's data sheets. nullopt for an unknown
/// GPU and for a part of a GPU (MIG, vGPU).
std::optional<double> bf16_tflops_of(std::string_view gpu);

struct Gpu {
  std::string name;  ///< "NVIDIA H200"
  std::size_t memory_bytes = 0;
  int major = 0, minor = 0;      ///< compute capability
  GpuCode code = {};             ///< the code for this GPU
  std::string describe() const;  ///< "NVIDIA H200 (sm_90, 139.8 GiB)"
};

struct Gpus {
  bool built = false;           ///< this build computes on GPUs
  std::vector<Gpu> visible;     ///< to this process, in the order of their indices
  std::string problem;          ///< why no GPU can be used; empty without GPUs or driver
  std::string remedy;           ///< the remedy for the problem
  std::string driver, runtime;  ///< versions of CUDA: what the driver knows, and what this build uses; "13.0"
};

/// Throws nothing but std::bad_alloc.
Gpus find_gpus();

/// The name of a device: "cpu", "NVIDIA H200".
std::string name_of(const Device& device);

}  // namespace lockstep::kernels
