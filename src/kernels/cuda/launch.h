// What every launch of a kernel needs, and how its failure is told. Light: .cu files include it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "lockstep/tensor/dtype.h"

namespace lockstep::kernels {

/// Where kernels run.
struct Launch {
  cudaStream_t stream = nullptr;
  int multiprocessors = 1;
  int device = 0;
};

/// Throws FailureError naming the kernel if its launch failed.
void check_launch(const char* kernel, const Launch& on);

/// Throws UsageError: elements of this type are not computed with.
[[noreturn]] void throw_not_built(const char* operation, DType dtype);

/// calls(T{}) with T = float or __nv_bfloat16.
template <class Bf16, class Calls>
void with_float_type(const char* operation, DType dtype, const Calls& calls) {
  if (dtype == DType::float32) {
    calls(float{});
  } else if (dtype == DType::bfloat16) {
    calls(Bf16{});
  } else {
    throw_not_built(operation, dtype);
  }
}

}  // namespace lockstep::kernels
