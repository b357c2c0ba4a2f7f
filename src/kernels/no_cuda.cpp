// The GPU backend of a Lockstep built without CUDA: it says so.
#include "lockstep/kernels/backend.h"

namespace lockstep::kernels {

std::unique_ptr<Backend> make_cuda_backend(int index) {
  throw UsageError(
      "device cuda:{}: this Lockstep was built without CUDA; set train.device = cpu, or build where the CUDA "
      "Toolkit is installed",
      index);
}

}  // namespace lockstep::kernels
