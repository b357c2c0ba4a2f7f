// The GPU backend in a build for CPUs only: an error.
#include "kernels/gpus.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::kernels {

std::unique_ptr<Backend> make_cuda_backend(int index) {
  throw UsageError("device cuda:{}: this build computes on CPUs only; set train.device = cpu or auto", index);
}

Gpus find_gpus() { return {}; }

}  // namespace lockstep::kernels
