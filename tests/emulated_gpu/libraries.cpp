// In the place of src/kernels/cuda/libraries.cpp: the libraries are there from the start.
#include <cstdlib>

#include "emulated_gpu/library_functions.h"
#include "emulated_gpu/runtime.h"
#include "kernels/gpus.h"

namespace lockstep::emulated_gpu {

const std::size_t cudnn_of_header = CUDNN_VERSION;

}  // namespace lockstep::emulated_gpu

namespace lockstep::kernels {

#define LOCKSTEP_LATE_FUNCTION(name) decltype(&::name) name = &emulated_gpu::name;
LOCKSTEP_CUBLASLT_FUNCTIONS(LOCKSTEP_LATE_FUNCTION)
LOCKSTEP_CUDNN_FUNCTIONS(LOCKSTEP_LATE_FUNCTION)
#undef LOCKSTEP_LATE_FUNCTION

void load_cuda_libraries() {}
const char* compiled_architectures() {
  const char* const given = std::getenv("LOCKSTEP_EMULATED_ARCHITECTURES");
  return given ? given : emulated_gpu::faults().architectures;
}

}  // namespace lockstep::kernels
