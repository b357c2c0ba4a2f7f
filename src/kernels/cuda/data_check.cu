// Values outside their bounds, told at the next read.
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/kernels.h"

namespace lockstep::kernels {
namespace {

/// One block, which finds the first. `fault` is written by one thread of one kernel after another.
__global__ void __launch_bounds__(1024)
    find_outside(const std::int64_t* values, std::int64_t count, std::int64_t bound, bool may_ignore,
                 std::int64_t ignored, std::int32_t kind, const char* operation, DataFault* fault) {
  __shared__ long long room[32];
  long long first = count;
  for (std::int64_t i = threadIdx.x; i < count; i += 1024) {
    const std::int64_t value = values[i];
    if ((value < 0 || value >= bound) && !(may_ignore && value == ignored)) {
      first = i;
      break;
    }
  }
  first = block_join(first, static_cast<long long>(count), room,
                     [](long long a, long long b) { return b < a ? b : a; });
  if (threadIdx.x != 0 || first == count || fault->kind != DataFault::none) return;
  fault->operation = operation;
  fault->value = values[first];
  fault->number = first;
  fault->bound = bound;
  fault->kind = kind;
}

}  // namespace

void check_data(const Launch& on, const Tensor& values, std::int64_t bound, const std::int64_t* ignored,
                DataFault::Kind kind, const char* operation, DataFault* fault) {
  if (values.numel() == 0) return;
  find_outside<<<1, 1024, 0, on.stream>>>(values.data<std::int64_t>(), values.numel(), bound,
                                          ignored != nullptr, ignored ? *ignored : 0, kind, operation, fault);
}

}  // namespace lockstep::kernels
