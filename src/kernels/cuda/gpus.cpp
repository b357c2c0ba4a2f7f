// What the CUDA runtime knows of this machine.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "base/dynamic_library.h"
#include "kernels/cuda/libraries.h"
#include "kernels/gpus.h"

namespace lockstep::kernels {
namespace {

/// 13000 is 13.0.
std::string version_text(int version) {
  return version == 0 ? "" : fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

Gpus find_gpus() {
  Gpus gpus{.built = true, .visible = {}, .problem = {}, .remedy = {}, .driver = {}, .runtime = {}};
  int driver = 0, runtime = 0, count = 0;
  cudaDriverGetVersion(&driver);  // 0 without a driver
  cudaRuntimeGetVersion(&runtime);
  gpus.driver = version_text(driver);
  gpus.runtime = version_text(runtime);
  cudaError_t status = cudaGetDeviceCount(&count);
  for (int index = 0; status == cudaSuccess && index < count; ++index) {
    cudaDeviceProp properties{};
    status = cudaGetDeviceProperties(&properties, index);
    if (status == cudaSuccess)
      gpus.visible.push_back({.name = properties.name,
                              .memory_bytes = properties.totalGlobalMem,
                              .major = properties.major,
                              .minor = properties.minor});
  }
  if (status == cudaSuccess) {
    try {
      if (count > 0) load_cuda_libraries();
    } catch (const LibraryError& error) {
      gpus.problem = error.cause;
      gpus.remedy = error.remedy;
      gpus.visible.clear();
    }
    return gpus;
  }
  cudaGetLastError();  // it is not the next call's
  gpus.visible.clear();
  // Without a driver there are no GPUs for anybody; with one that is too old there may be.
  if (status != cudaErrorNoDevice && driver != 0) {
    gpus.problem = fmt::format("{} ({})", cudaGetErrorString(status), cudaGetErrorName(status));
    gpus.remedy =
        status == cudaErrorInsufficientDriver
            ? fmt::format("update the driver, which is for CUDA {}, or build with that", gpus.driver)
            : "see nvidia-smi, and the driver's log (dmesg, Xid)";
  }
  return gpus;
}

}  // namespace lockstep::kernels
