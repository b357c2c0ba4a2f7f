// The emulated CUDA runtime: what a test has it do, and what its parts share.
//
// LOCKSTEP_EMULATED_GPU in the environment says when a stream's work is done:
//   late          as late as CUDA allows, and no more of it than somebody waits for (the default)
//   random:SEED   at any moment; without a seed one is drawn, and printed
//   eager         at once
//   count         at once, and only as far as counting its launches and bytes needs (counting.h)
// with "+races" behind it: accesses of kernels are checked, too (races.h).
// There are two devices, of which a program sees those that CUDA_VISIBLE_DEVICES names; without it, both.
// Work is done by whoever calls the runtime: it must not wait for other threads or ranks.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <mutex>

namespace lockstep::emulated_gpu {

/// The version of cuDNN whose headers this was built with (libraries.cpp).
extern const std::size_t cudnn_of_header;

/// What calls end with that a test wants to fail.
struct Faults {
  cudaError_t memory = cudaSuccess;    ///< asking for memory of the device
  cudaError_t streams = cudaSuccess;   ///< making a stream
  cudaError_t launches = cudaSuccess;  ///< launching a graph
  cudaError_t devices = cudaSuccess;   ///< counting the devices
  std::size_t free_bytes = std::size_t{1} << 40;
  int good_allocations = -1;         ///< of the device's memory, before the one that fails; -1: none fails
  int good_launches = -1;            ///< of kernels, before the one that breaks the device; -1: none does
  cudaError_t broken = cudaSuccess;  ///< what every call ends with since then: no device recovers
  bool fused_products = true;        ///< cuBLASLt has algorithms for products with epilogues
  int driver = CUDART_VERSION;       ///< the newest CUDA that the driver knows
  bool convolution_graphs = true;    ///< cuDNN has engines for graphs of a convolution
  bool fused_bias = true;            ///< also with a bias
  bool chosen_engines = true;        ///< it makes plans of engines and knobs that a program names
  bool any_width = false;            ///< cuDNN takes heads that it does not document
  int major = 9;                     ///< of the compute capability
  const char* architectures =
      "90";  ///< that the build has code for; LOCKSTEP_EMULATED_ARCHITECTURES goes first
  std::size_t shared_bytes = 227 * 1024;        ///< that a block may have: as on an H100
  std::size_t cudnn_version = cudnn_of_header;  ///< of the library
};
Faults& faults();

/// Ends the faults that a test sets, and what they left behind in this thread.
struct WithFaults {
  WithFaults() = default;
  ~WithFaults() {
    faults() = {};
    cudaGetLastError();
  }
  WithFaults(const WithFaults&) = delete;
  WithFaults& operator=(const WithFaults&) = delete;
};

/// Of the devices that the program sees, that of the calling thread: 0 until it calls cudaSetDevice.
int current_device();
/// Makes another device the thread's for a while.
struct WithDevice {
  explicit WithDevice(int device);
  ~WithDevice();
  WithDevice(const WithDevice&) = delete;
  WithDevice& operator=(const WithDevice&) = delete;
  int before;
};

/// What was asked for since a test set it to 0.
struct Counts {
  std::atomic<int> spinning_waits{0};   ///< for an event whose waiters do not sleep
  std::atomic<int> attention_plans{0};  ///< plans of cuDNN's graphs
  std::atomic<int> graph_runs{0};       ///< of cuDNN's graphs
  std::atomic<int> uploads{0};          ///< copies from the CPU's memory to a device
  std::atomic<int> ragged_products{0};  ///< of a matrix of bf16 whose rows begin at no multiple of 16 bytes
};
Counts& counts();

/// One thread at a time is in the runtime, or in what it carries out.
using Turn = std::unique_lock<std::recursive_mutex>;
Turn take_turn();

/// A random number; with LOCKSTEP_EMULATED_GPU=random of its seed.
std::uint64_t draw();
/// See kernels.h.
cudaError_t allow_shared(const void* function, int bytes);

/// The error, which is the calling thread's last one now.
cudaError_t failed(cudaError_t error);

/// Pieces of the device's memory that were not freed.
std::size_t pieces_in_use();

/// Whether there is such a stream; null is one.
bool known(cudaStream_t stream);
/// Where the work of the stream is done. The null stream is the current device's own.
int device_of(cudaStream_t stream);
/// Carries out what the stream was asked for so far, and what that waits for.
void finish(cudaStream_t stream);
/// What all streams of the device were asked for so far.
void finish_all(int device);

/// Whether any of these bytes is in memory that was freed, in the order of its stream.
bool freed(const void* first, std::size_t bytes);
/// Whether the address is in memory of another device than this one, which cannot access it.
bool out_of_reach(const void* address, int device);
/// Ends the program if any of a library's operands is out of the current device's reach.
void require_within_reach(std::initializer_list<const void*> operands);

/// Ends the program: a GPU would continue with wrong values, or fail later and elsewhere.
[[noreturn]] void refuse(const char* why);

}  // namespace lockstep::emulated_gpu
