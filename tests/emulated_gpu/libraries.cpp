// In the place of src/kernels/cuda/libraries.cpp: the libraries are there from the start.
#include "emulated_gpu/library_functions.h"
#include "emulated_gpu/runtime.h"

namespace lockstep::emulated_gpu {

const std::size_t cudnn_of_header = CUDNN_VERSION;

}  // namespace lockstep::emulated_gpu

namespace lockstep::kernels {

#define LOCKSTEP_LATE_FUNCTION(name) decltype(&::name) name = &emulated_gpu::name;
LOCKSTEP_CUBLASLT_FUNCTIONS(LOCKSTEP_LATE_FUNCTION)
LOCKSTEP_CUDNN_FUNCTIONS(LOCKSTEP_LATE_FUNCTION)
#undef LOCKSTEP_LATE_FUNCTION

void load_cuda_libraries() {}

}  // namespace lockstep::kernels
