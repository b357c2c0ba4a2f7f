// Sums along the tree and casts to 16-bit floats: one pass over memory each, 16 bytes at a time where
// addresses allow.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "comm/nccl/kernels.h"

namespace lockstep::comm {
namespace {

constexpr int block_threads = 256;

/// Width elements that are read or written at once; their address is a multiple of their size.
template <class T, int Width>
struct alignas(sizeof(T) * Width) Pack {
  T lane[Width];
};

template <class T, int Width>
__device__ Pack<T, Width> load(const std::byte* from, std::int64_t element) {
  return *reinterpret_cast<const Pack<T, Width>*>(from + element * static_cast<std::int64_t>(sizeof(T)));
}
template <class T, int Width>
__device__ void store(std::byte* to, std::int64_t element, const Pack<T, Width>& pack) {
  *reinterpret_cast<Pack<T, Width>*>(to + element * static_cast<std::int64_t>(sizeof(T))) = pack;
}

// To nearest, ties to even: the bits of tensor/dtype.h.
template <class To, class From>
__device__ To converted(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (std::is_same_v<To, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else if constexpr (std::is_same_v<To, __half>) {
    return __float2half_rn(x);
  } else if constexpr (std::is_same_v<From, __nv_bfloat16>) {
    return __bfloat162float(x);
  } else {
    return __half2float(x);
  }
}

template <class To, class From, int Width>
__device__ Pack<To, Width> converted(const Pack<From, Width>& from) {
  Pack<To, Width> to;
#pragma unroll
  for (int i = 0; i < Width; ++i) to.lane[i] = converted<To>(from.lane[i]);
  return to;
}

/// The part of a TreeAddition that a kernel needs.
struct Addition {
  const SumStep* steps;
  int count_of_steps;
  const std::byte* accumulators;
  std::int64_t accumulator_bytes;
  const std::byte* slots;
  std::int64_t slot_bytes;
  std::byte* sum;
  std::byte* cast_sum;
  std::int64_t count;
};

template <class T, class Sent, int Depth, int Width>
__device__ void add_at(const Addition& addition, std::int64_t element) {
  using Values = Pack<T, Width>;
  const auto value_of = [&](int source) -> Values {
    if (source < 0)
      return converted<T>(load<Sent, Width>(addition.slots + ~source * addition.slot_bytes, element));
    const Values values =
        load<T, Width>(addition.accumulators + source * addition.accumulator_bytes, element);
    return converted<T>(converted<Sent>(values));
  };
  const auto add = [](const Values& left, const Values& right) {
    Values sum;
#pragma unroll
    for (int i = 0; i < Width; ++i) sum.lane[i] = left.lane[i] + right.lane[i];
    return sum;
  };
  const Values total = sum_along_tree<Depth>(addition.steps, addition.count_of_steps, value_of, add);
  const Pack<Sent, Width> cast = converted<Sent>(total);
  store(addition.sum, element, converted<T>(cast));
  if (addition.cast_sum) store(addition.cast_sum, element, cast);
}

template <class T, class Sent, int Depth, int Width>
__global__ void __launch_bounds__(block_threads) add_along_tree(Addition addition) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const std::int64_t whole = addition.count / Width * Width;
  for (std::int64_t element = thread * Width; element < whole; element += threads * Width)
    add_at<T, Sent, Depth, Width>(addition, element);
  if (const std::int64_t rest = whole + thread; rest < addition.count)
    add_at<T, Sent, Depth, 1>(addition, rest);
}

template <class To, class From, int Width>
__global__ void __launch_bounds__(block_threads)
    convert(const std::byte* from, std::byte* to, std::int64_t count) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const std::int64_t whole = count / Width * Width;
  for (std::int64_t element = thread * Width; element < whole; element += threads * Width)
    store(to, element, converted<To>(load<From, Width>(from, element)));
  if (const std::int64_t rest = whole + thread; rest < count)
    store(to, rest, converted<To>(load<From, 1>(from, rest)));
}

unsigned blocks_for(std::int64_t elements, int width, const DeviceLaunch& on) {
  const std::int64_t per_block = std::int64_t{block_threads} * width;
  const std::int64_t blocks = (elements + per_block - 1) / per_block;
  const std::int64_t max_blocks = std::int64_t{on.multiprocessors} * 16;
  return static_cast<unsigned>(blocks < max_blocks ? blocks : max_blocks);
}

bool is_aligned(const void* address, std::int64_t stride_bytes, int bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0 && stride_bytes % bytes == 0;
}

template <class T, class Sent, int Depth>
void add_deep(const Addition& addition, const DeviceLaunch& on) {
  constexpr int width = 16 / static_cast<int>(sizeof(T));
  constexpr int sent_bytes = width * static_cast<int>(sizeof(Sent));
  const bool packs = is_aligned(addition.accumulators, addition.accumulator_bytes, 16) &&
                     is_aligned(addition.sum, 0, 16) &&
                     is_aligned(addition.slots, addition.slot_bytes, sent_bytes) &&
                     is_aligned(addition.cast_sum, 0, sent_bytes);
  if (packs) {
    add_along_tree<T, Sent, Depth, width>
        <<<blocks_for(addition.count, width, on), block_threads, 0, on.stream>>>(addition);
  } else {
    add_along_tree<T, Sent, Depth, 1>
        <<<blocks_for(addition.count, 1, on), block_threads, 0, on.stream>>>(addition);
  }
}

/// With few shards few values wait, which needs fewer registers and lets more threads run.
template <class T, class Sent>
void add(const Addition& addition, int depth, const DeviceLaunch& on) {
  if (depth <= 6) {
    add_deep<T, Sent, 6>(addition, on);
  } else {
    add_deep<T, Sent, deepest_tree>(addition, on);
  }
}

template <class To, class From>
cudaError_t convert_all(const std::byte* from, std::byte* to, std::int64_t count, const DeviceLaunch& on) {
  constexpr int width = 8;
  if (count <= 0) return cudaSuccess;
  if (is_aligned(from, 0, width * sizeof(From)) && is_aligned(to, 0, width * sizeof(To))) {
    convert<To, From, width><<<blocks_for(count, width, on), block_threads, 0, on.stream>>>(from, to, count);
  } else {
    convert<To, From, 1><<<blocks_for(count, 1, on), block_threads, 0, on.stream>>>(from, to, count);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_add(const TreeAddition& addition, const DeviceLaunch& on) {
  if (addition.count <= 0) return cudaSuccess;
  const Addition what{.steps = addition.program->on_device,
                      .count_of_steps = static_cast<int>(addition.program->steps.size()),
                      .accumulators = addition.accumulators,
                      .accumulator_bytes = static_cast<std::int64_t>(addition.accumulator_bytes),
                      .slots = addition.slots,
                      .slot_bytes = static_cast<std::int64_t>(addition.slot_bytes),
                      .sum = addition.sum,
                      .cast_sum = addition.cast_sum,
                      .count = addition.count};
  const int depth = addition.program->depth;
  if (addition.dtype == DType::float64) {
    add<double, double>(what, depth, on);
  } else if (addition.comm_dtype == DType::bfloat16) {
    add<float, __nv_bfloat16>(what, depth, on);
  } else if (addition.comm_dtype == DType::float16) {
    add<float, __half>(what, depth, on);
  } else {
    add<float, float>(what, depth, on);
  }
  return cudaGetLastError();
}

cudaError_t launch_cast_to(const std::byte* values, std::byte* cast, std::int64_t count, DType comm_dtype,
                           const DeviceLaunch& on) {
  return comm_dtype == DType::bfloat16 ? convert_all<__nv_bfloat16, float>(values, cast, count, on)
                                       : convert_all<__half, float>(values, cast, count, on);
}

cudaError_t launch_cast_from(const std::byte* cast, std::byte* values, std::int64_t count, DType comm_dtype,
                             const DeviceLaunch& on) {
  return comm_dtype == DType::bfloat16 ? convert_all<float, __nv_bfloat16>(cast, values, count, on)
                                       : convert_all<float, __half>(cast, values, count, on);
}

}  // namespace lockstep::comm
