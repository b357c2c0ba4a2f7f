#include "kernels/cuda/libraries.h"

#include "lockstep/base/error.h"

namespace lockstep::kernels {
namespace {

constexpr const char* hint =
    "see the driver's log (dmesg, Xid) for the GPU's health; compute-sanitizer finds a faulty kernel";

}  // namespace

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
  cudaGetLastError();  // this one leaves the device as it was
  throw FailureError(
      "cuda:{} is out of memory: no {} bytes left ({}); use a smaller batch or set train.micro_batches",
      device, bytes, call);
}

}  // namespace lockstep::kernels
