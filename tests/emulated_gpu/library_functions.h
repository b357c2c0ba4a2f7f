// cuBLASLt and cuDNN computed on the CPU: what libraries.cpp points the late functions to. As strict as the
// libraries document themselves, and of what they leave open the worst: nothing is done that nobody waited
// for.
#pragma once

#include "kernels/cuda/libraries.h"

namespace lockstep::emulated_gpu {

#define LOCKSTEP_EMULATED_FUNCTION(name) decltype(::name) name;
LOCKSTEP_CUBLASLT_FUNCTIONS(LOCKSTEP_EMULATED_FUNCTION)
LOCKSTEP_CUDNN_FUNCTIONS(LOCKSTEP_EMULATED_FUNCTION)
#undef LOCKSTEP_EMULATED_FUNCTION

}  // namespace lockstep::emulated_gpu
