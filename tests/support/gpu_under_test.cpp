#include "comm/nccl/on_gpu.h"
#include "support/backend_under_test.h"

namespace lockstep::test {

std::unique_ptr<kernels::Backend> make_backend_under_test() { return kernels::make_cuda_backend(own_gpu()); }

}  // namespace lockstep::test
