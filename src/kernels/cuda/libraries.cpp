#include "kernels/cuda/libraries.h"

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <vector>

#include "base/dynamic_library.h"
#include "kernels/gpus.h"
#include "lockstep/base/error.h"

namespace lockstep::kernels {

#define LOCKSTEP_LATE_FUNCTION(name) decltype(&::name) name = nullptr;
LOCKSTEP_CUBLASLT_FUNCTIONS(LOCKSTEP_LATE_FUNCTION)
LOCKSTEP_CUDNN_FUNCTIONS(LOCKSTEP_LATE_FUNCTION)
#undef LOCKSTEP_LATE_FUNCTION

namespace {

constexpr const char* hint =
    "see the driver's log (dmesg, Xid) for the GPU's health; compute-sanitizer finds a faulty kernel";

/// Loads the versions that this build is for; of the folders that the system does not search, the library's
/// own first.
void load_all() {
  const std::vector<std::string> folders{LOCKSTEP_CUDA_FOLDER, LOCKSTEP_CUDNN_FOLDER,
                                         "/usr/local/cuda/lib64"};
  const std::string remedy = "install it, load its module, or name its folder in LD_LIBRARY_PATH";
  const DynamicLibrary cublaslt(fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR), folders, remedy);
  const DynamicLibrary cudnn(fmt::format("libcudnn.so.{}", CUDNN_MAJOR), folders, remedy);
#define LOCKSTEP_FIND(name) cublaslt.find(#name, name);
  LOCKSTEP_CUBLASLT_FUNCTIONS(LOCKSTEP_FIND)
#undef LOCKSTEP_FIND
#define LOCKSTEP_FIND(name) cudnn.find(#name, name);
  LOCKSTEP_CUDNN_FUNCTIONS(LOCKSTEP_FIND)
#undef LOCKSTEP_FIND
  constexpr std::size_t min_cudnn = 91002;  // LockstepCuda.cmake says why
  if (const std::size_t version = cudnnGetVersion(); version < min_cudnn)
    throw LibraryError(fmt::format("libcudnn.so.{}: is cuDNN {}.{}.{}; 9.10.2 or later is needed",
                                   CUDNN_MAJOR, version / 10000, version / 100 % 100, version % 100),
                       remedy);
}

}  // namespace

const char* compiled_architectures() { return LOCKSTEP_CUDA_ARCHITECTURES; }

void load_cuda_libraries() {
  static const bool loaded = (load_all(), true);
  static_cast<void>(loaded);
}

void check(cudaError_t status, const char* call, int device) {
  if (status == cudaSuccess) return;
  throw FailureError(
      "{} on cuda:{} failed: {} ({}); {}", call, device, cudaGetErrorString(status), cudaGetErrorName(status),
      status == cudaErrorMemoryAllocation ? "use a smaller batch or set train.micro_batches" : hint);
}

void check(cublasStatus_t status, const char* call, int device) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw FailureError("{} on cuda:{} failed: {} ({}); {}", call, device, cublasLtGetStatusString(status),
                     cublasLtGetStatusName(status), hint);
}

void check(cudnnStatus_t status, const char* call, int device) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char last[256] = "";
  cudnnGetLastErrorString(last, sizeof last);
  throw FailureError("{} on cuda:{} failed: {} ({}); {}", call, device, cudnnGetErrorString(status), last,
                     hint);
}

void check_allocation(cudaError_t status, const char* call, std::size_t bytes, int device) {
  if (status == cudaSuccess) return;
  if (status != cudaErrorMemoryAllocation) check(status, call, device);
  cudaGetLastError();  // this error leaves the device usable
  throw FailureError(
      "cuda:{} is out of memory: no {} bytes left ({}); use a smaller batch or set train.micro_batches",
      device, bytes, call);
}

}  // namespace lockstep::kernels
