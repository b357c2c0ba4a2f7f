// The emulated CUDA runtime: what a test has it do, and what its parts share.
//
// LOCKSTEP_EMULATED_GPU in the environment says when a stream's work is done:
//   late          as late as CUDA allows, and no more of it than somebody waits for (the default)
//   random:SEED   at any moment; without a seed one is drawn, and printed
//   eager         at once
// Work is done by whoever calls the runtime: it must not wait for other threads or ranks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <mutex>

namespace lockstep::emulated_gpu {

/// What calls end with that a test wants to fail.
struct Faults {
  cudaError_t memory = cudaSuccess;    ///< asking for memory of the device
  cudaError_t streams = cudaSuccess;   ///< making a stream
  cudaError_t launches = cudaSuccess;  ///< launching a graph
  std::size_t free_bytes = std::size_t{1} << 40;
};
Faults& faults();

/// One thread at a time is in the runtime, or in what it carries out.
using Turn = std::unique_lock<std::recursive_mutex>;
Turn take_turn();

/// The error, which is the calling thread's last one now.
cudaError_t failed(cudaError_t error);

/// Whether there is such a stream; null is one.
bool known(cudaStream_t stream);
/// Carries out what the stream was asked for so far, and what that waits for.
void finish(cudaStream_t stream);
void finish_all();

/// Ends the program: a GPU would continue with wrong values, or fail later and elsewhere.
[[noreturn]] void refuse(const char* why);

}  // namespace lockstep::emulated_gpu
