// Finds values out of range, which the next read reports.
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/kernels.h"

namespace lockstep::kernels {
namespace {

constexpr int block = 1024;
constexpr std::int64_t values_per_block = 16384;

__device__ long long first_of_block(long long first, long long none, long long* shared) {
  return block_join(first, none, shared, [](long long a, long long b) { return b < a ? b : a; });
}

/// Only one thread at a time calls it.
__device__ void report(DataFault* fault, const DataFault& candidate) {
  if (fault->kind == DataFault::none) *fault = candidate;
}

/// One block reports the first such value; several blocks write theirs to `firsts`.
__global__ void __launch_bounds__(block)
    find_outside(const std::int64_t* values, std::int64_t count, bool may_ignore, std::int64_t ignored,
                 std::int64_t of_part, DataFault candidate, DataFault* fault, std::int64_t* firsts) {
  __shared__ long long shared[32];
  long long first = count;
  for (std::int64_t i = global_thread(); i < count; i += global_threads()) {
    const std::int64_t value = values[i];
    if ((value < 0 || value >= candidate.bound) && !(may_ignore && value == ignored)) {
      first = i;
      break;
    }
  }
  first = first_of_block(first, count, shared);
  if (threadIdx.x != 0) return;
  if (gridDim.x > 1) {
    firsts[blockIdx.x] = first;
  } else if (first < count) {
    candidate.number = first % of_part;
    candidate.value = values[first];
    report(fault, candidate);
  }
}

__global__ void __launch_bounds__(block)
    report_first(const std::int64_t* values, std::int64_t count, std::int64_t of_part, DataFault candidate,
                 DataFault* fault, const std::int64_t* firsts, int blocks) {
  __shared__ long long shared[32];
  const int i = static_cast<int>(threadIdx.x);
  const long long first = first_of_block(i < blocks ? firsts[i] : count, count, shared);
  if (i != 0 || first == count) return;
  candidate.number = first % of_part;
  candidate.value = values[first];
  report(fault, candidate);
}

}  // namespace

void check_data(const Launch& on, const Tensor& values, std::int64_t bound, const std::int64_t* ignored,
                DataFault::Kind kind, const char* operation, DataFault* fault, int parts) {
  const std::int64_t of_part = values.numel(), count = of_part * parts;
  if (count == 0) return;
  const auto* const from = values.data<std::int64_t>();
  const DataFault candidate{.kind = kind, .operation = operation, .bound = bound};
  const int blocks = static_cast<int>(
      std::min<std::int64_t>((count + values_per_block - 1) / values_per_block, max_check_blocks));
  find_outside<<<blocks, block, 0, on.stream>>>(from, count, ignored != nullptr, ignored ? *ignored : 0,
                                                of_part, candidate, fault, firsts_of(fault));
  if (blocks > 1)
    report_first<<<1, block, 0, on.stream>>>(from, count, of_part, candidate, fault, firsts_of(fault),
                                             blocks);
}

}  // namespace lockstep::kernels
