// CUDA's kernels as C++ for the CPU. The build rewrites each launch of a .cu file into launch() (by
// rewrite_launches.py) and includes this before all else.
//
// A block's threads are fibers, and blocks run one after another, in an order that is drawn. A warp runs
// until it has to wait for others, so that a missing __syncthreads() shows; warps and their lanes take turns
// in rising order in one block, in falling order in the next. What a GPU leaves undefined ends the program
// with the reason: a barrier or a shuffle that some threads never reach, an operand that was freed or is
// another device's, a launch that no GPU takes, or, where that is asked for (races.h), blocks of a launch
// that depend on each other.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <iterator>
#include <type_traits>
#include <utility>
#include <vector>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)

// Of the thread that runs, under CUDA's names.
inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

namespace lockstep::emulated_gpu {

inline constexpr int warp_lanes = 32;

/// One thread's work, as often as there are threads.
struct Launched {
  const char* kernel;
  const void* function;  ///< the kernel, where the launch names it; null otherwise
  dim3 grid, block;
  std::size_t shared_bytes;
  std::function<void()> thread;
  std::vector<const void*> operands;  ///< arguments that are addresses, and what may be some in structures
  int device = 0;                     ///< of the stream
};

/// A structure that may hold addresses, of a compiler that can clear what is between its parts: that could
/// look like an address from before. (GCC; Clang 14 cannot.)
template <class Argument>
concept MayHoldAddresses = std::is_class_v<Argument> && std::is_trivially_copyable_v<Argument> &&
                               alignof(Argument) >= alignof(void*) &&
                           requires(Argument* argument) {
  __builtin_clear_padding(argument);
};

/// Adds an argument that is an address, or the words of a structure, which has to be initialised as a whole.
template <class Argument>
void add_operand(Argument argument, std::vector<const void*>& operands) {
  if constexpr (std::is_pointer_v<Argument>) {
    operands.push_back(argument);
  } else if constexpr (MayHoldAddresses<Argument>) {
    __builtin_clear_padding(&argument);
    std::array<const void*, sizeof(Argument) / sizeof(void*)> words;
    std::memcpy(words.data(), &argument, sizeof words);
    std::ranges::copy_if(words, std::back_inserter(operands), [](const void* word) { return word; });
  }
}

/// Queued on the stream; an error where that is not of the current device, or the launch takes more shared
/// memory than its kernel was allowed.
void launch(cudaStream_t stream, Launched launched);

/// The rest of the block's threads, or of the warp's, arrive before it returns.
void meet_block();
void meet_warp();
/// Gives `mine` (8 bytes at most) to the warp; afterwards lane `lane` of it is at the address that returns,
/// until the thread's next exchange.
const void* exchange(const void* mine, std::size_t bytes, unsigned mask, int lane);
int lane_of_thread();
/// The block's shared memory whose size the launch names; NaNs in each block.
void* shared_memory();
/// The same for shared memory of a fixed size: a block's first thread to come there finds NaNs.
void begin_shared(void* first, std::size_t bytes);
/// As cudaFuncSetAttribute; how much shared memory launches of the kernel may name.
cudaError_t allow_shared(const void* function, int bytes);

template <class Kernel, class... Arguments>
void launch(const char* name, const void* function, dim3 grid, dim3 block, std::size_t shared_bytes,
            cudaStream_t stream, Kernel kernel, Arguments... arguments) {
  static_assert((0 + ... + sizeof(Arguments)) <= 32764, "a kernel's arguments have at most 32764 bytes");
  std::vector<const void*> operands;
  (add_operand(arguments, operands), ...);
  launch(stream,
         {name, function, grid, block, shared_bytes, [=] { kernel(arguments...); }, std::move(operands), 0});
}

template <class T>
T from_lane(T mine, unsigned mask, int lane) {
  static_assert(sizeof(T) <= 8);
  T theirs;
  std::memcpy(&theirs, exchange(&mine, sizeof mine, mask, lane), sizeof theirs);
  return theirs;
}

}  // namespace lockstep::emulated_gpu

inline void __syncthreads() { lockstep::emulated_gpu::meet_block(); }
inline void __syncwarp() { lockstep::emulated_gpu::meet_warp(); }

template <class T>
T __shfl_sync(unsigned mask, T mine, int lane) {
  return lockstep::emulated_gpu::from_lane(mine, mask, lane % lockstep::emulated_gpu::warp_lanes);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T mine, int by) {
  return lockstep::emulated_gpu::from_lane(mine, mask, lockstep::emulated_gpu::lane_of_thread() ^ by);
}

using std::isfinite;
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float normcdff(float x) { return 0.5f * std::erfc(x * -0.70710678118654752f); }

template <class... Arguments>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Arguments...), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
