#include "comm/nccl/device_arena.h"

#include <exception>
#include <utility>

#include "comm/nccl/check.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t plane_alignment_bytes = 512;  // of planes: what copies and NCCL like best

/// To be asked after ncclMemAlloc, which tells all of CUDA's errors as one; what it asks of the driver leaves
/// no trace in the runtime.
bool lacks_memory(std::size_t bytes) {
  if (cudaPeekAtLastError() == cudaErrorMemoryAllocation) return true;
  std::size_t free = 0, total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess && free < bytes;
}

}  // namespace

DeviceArena::DeviceArena(std::shared_ptr<DeviceLane> lane, cudaStream_t compute, std::size_t plane_bytes,
                         int planes, bool registered)
    : lane_(std::move(lane)),
      compute_(compute),
      plane_bytes_(plane_bytes),
      stride_bytes_((plane_bytes + plane_alignment_bytes - 1) / plane_alignment_bytes *
                    plane_alignment_bytes),
      planes_(planes),
      exceptions_at_start_(std::uncaught_exceptions()) {
  allocate();
  try {
    prepare(registered);
  } catch (...) {
    if (lane_->drain(lane_->stream()) && lane_->drain(compute_)) release();  // it waits for the whole device
    throw;
  }
}

void DeviceArena::prepare(bool registered) {
  const std::size_t bytes = stride_bytes_ * static_cast<std::size_t>(planes_) + plane_alignment_bytes;
  check_cuda(cudaMemsetAsync(memory_, 0, bytes, compute_), "cudaMemsetAsync", lane_->rank());
  check_cuda(cudaStreamSynchronize(compute_), "cudaStreamSynchronize", lane_->rank());
  if (registered && of_nccl_) {
    lane_->connection().make("ncclCommRegister", [&](ncclComm_t comm) {
      return ncclCommRegister(comm, memory_, bytes, &handle_);
    });
  }
}

void DeviceArena::release() noexcept {
  if (of_nccl_) {
    ncclMemFree(memory_);
  } else {
    cudaFree(memory_);
  }
}

void DeviceArena::allocate() {
  const std::size_t bytes = stride_bytes_ * static_cast<std::size_t>(planes_) + plane_alignment_bytes;
  of_nccl_ = lane_->connection().started();
  if (!of_nccl_) {
    const cudaError_t made = cudaMalloc(&memory_, bytes);
    if (made == cudaErrorMemoryAllocation) throw_no_memory(bytes);
    return check_cuda(made, "cudaMalloc", lane_->rank());
  }
  const ncclResult_t made = ncclMemAlloc(&memory_, bytes);
  if (made == ncclSuccess && memory_) return;
  if (lacks_memory(bytes)) throw_no_memory(bytes);
  // The communicator is as good as before.
  throw FailureError(
      "ncclMemAlloc of {} bytes failed on rank {}: {}; NCCL_DEBUG=WARN in the environment shows more", bytes,
      lane_->rank(), ncclGetErrorString(made));
}

void DeviceArena::throw_no_memory(std::size_t bytes) const {
  cudaGetLastError();  // want of memory leaves the device as it was
  throw FailureError(
      "arena on rank {}: the GPU has no {} bytes left for {} planes of {} bytes; use a smaller batch, or "
      "more ranks for the shards",
      lane_->rank(), bytes, planes_, plane_bytes_);
}

DeviceArena::~DeviceArena() {
  NcclConnection& connection = lane_->connection();
  if (left_ || connection.failed() || std::uncaught_exceptions() > exceptions_at_start_) return;
  if (!lane_->drain(lane_->stream()) || !lane_->drain(compute_)) return;
  try {
    if (handle_)
      connection.make("ncclCommDeregister",
                      [&](ncclComm_t comm) { return ncclCommDeregister(comm, handle_); });
  } catch (...) {
    return;
  }
  release();
}

std::byte* DeviceArena::plane(int index) {
  if (index < 0 || index >= planes_) throw UsageError("arena: no plane {} among {}", index, planes_);
  return static_cast<std::byte*>(memory_) + stride_bytes_ * static_cast<std::size_t>(index);
}

}  // namespace lockstep::comm
