// CUDA's runtime and the kernels, in the CPU's memory: work is done when it is asked for. Programs that link
// this run the transport between GPUs where there is none.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>

#include "comm/nccl/kernels.h"
#include "comm/wire.h"
#include "pretended_cuda.h"
#include "simulated_gpus.h"

struct CUstream_st {};
struct CUevent_st {
  bool recorded = false;
  bool looked_at = false;
  long synchronizations = 0;  ///< before it was recorded
};

namespace {

/// Of the last call that failed, until somebody asks: a launch reports what is left here.
cudaError_t last_error = cudaSuccess;

long synchronizations = 0;

cudaError_t failed(cudaError_t error) { return last_error = error; }

lockstep::test::PretendedCuda state;

cudaError_t allocate(void** memory, std::size_t bytes) {
  if (state.memory != cudaSuccess) return failed(state.memory);
  *memory = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  if (!*memory) return failed(cudaErrorMemoryAllocation);
  std::memset(*memory, 0xab, bytes);
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : failed(cudaErrorInvalidDevice); }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 8;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* address, int length, int) {
  std::strncpy(address, "0000:00:00.0", static_cast<std::size_t>(length));
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) { return allocate(memory, bytes); }
cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t) {
  return allocate(memory, bytes);
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t) { return cudaFree(memory); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = state.free_bytes;
  *total = std::size_t{1} << 40;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  if (state.streams != cudaSuccess) return failed(state.streams);
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  ++synchronizations;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t event, unsigned) {
  return event->recorded ? cudaSuccess : failed(cudaErrorInvalidValue);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  *event = {.recorded = true, .synchronizations = synchronizations};
  return cudaSuccess;
}
/// Not ready at the first look, unless somebody has waited meanwhile.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!event->recorded) return failed(cudaErrorInvalidValue);
  const bool ready = event->looked_at || event->synchronizations < synchronizations;
  event->looked_at = true;
  return ready ? cudaSuccess : failed(cudaErrorNotReady);
}

cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
const char* cudaGetErrorName(cudaError_t) { return "an error of the pretended CUDA"; }
const char* cudaGetErrorString(cudaError_t) { return "see pretended_cuda.cpp"; }

}  // extern "C"

lockstep::test::PretendedCuda& lockstep::test::pretended_cuda() { return state; }

namespace lockstep::comm {

cudaError_t launch_add(const TreeAddition& addition, const DeviceLaunch&) {
  test::add_on_cpu(addition);
  return cudaGetLastError();
}
cudaError_t launch_narrow(const std::byte* values, std::byte* narrowed, std::int64_t count, DType wire,
                          const DeviceLaunch&) {
  narrow(values, narrowed, count, wire);
  return cudaGetLastError();
}
cudaError_t launch_widen(const std::byte* narrowed, std::byte* values, std::int64_t count, DType wire,
                         const DeviceLaunch&) {
  widen(narrowed, values, count, wire);
  return cudaGetLastError();
}

}  // namespace lockstep::comm
