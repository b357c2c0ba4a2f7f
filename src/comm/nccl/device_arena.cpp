#include "comm/nccl/device_arena.h"

#include <exception>
#include <utility>

#include "comm/nccl/check.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t alignment = 512;  // of planes: what copies and NCCL like best

}  // namespace

DeviceArena::DeviceArena(std::shared_ptr<DeviceLane> lane, cudaStream_t compute, std::size_t plane_bytes,
                         int planes, bool registered)
    : lane_(std::move(lane)),
      compute_(compute),
      plane_bytes_(plane_bytes),
      stride_bytes_((plane_bytes + alignment - 1) / alignment * alignment),
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
  const std::size_t bytes = stride_bytes_ * static_cast<std::size_t>(planes_) + alignment;
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
  const std::size_t bytes = stride_bytes_ * static_cast<std::size_t>(planes_) + alignment;
  of_nccl_ = lane_->connection().started();
  const bool made =
      of_nccl_ ? ncclMemAlloc(&memory_, bytes) == ncclSuccess : cudaMalloc(&memory_, bytes) == cudaSuccess;
  if (made && memory_) return;
  cudaGetLastError();  // want of memory leaves the device as it was
  throw FailureError(
      "arena on rank {}: the GPU has no {} bytes left for {} planes of {} bytes; use a smaller batch, or "
      "more ranks for the shards",
      lane_->rank(), bytes, planes_, plane_bytes_);
}

DeviceArena::~DeviceArena() {
  NcclConnection& connection = lane_->connection();
  if (connection.failed() || std::uncaught_exceptions() > exceptions_at_start_) return;
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
