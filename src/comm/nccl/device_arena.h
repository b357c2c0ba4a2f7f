// An arena in the memory of a GPU.
#pragma once

#include <memory>

#include "comm/nccl/device_lane.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

/// Where the lane is connected the memory is NCCL's (ncclMemAlloc), and registered with it, unless terms of
/// it are to be sent into memory that is not: NCCL wants both sides of a call registered, or none. (A window,
/// for its symmetric kernels, would be the better registration for small vectors within NVLink's reach;
/// buckets are large, and take rings or NVLink SHARP, which this one serves.)
class DeviceArena final : public Arena {
 public:
  /// `compute`: the stream of those who fill the planes. The memory is zeroed when it returns.
  DeviceArena(std::shared_ptr<DeviceLane> lane, cudaStream_t compute, std::size_t plane_bytes, int planes,
              bool registered);
  /// Waits for both streams. After a failure, and while an exception unwinds, peers may never send what they
  /// wait for: then the memory is left to the end of the process.
  ~DeviceArena() override;
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  std::byte* plane(int index) override;
  int planes() const override { return planes_; }
  std::size_t plane_bytes() const override { return plane_bytes_; }
  bool leave() override { return left_ = true; }

  const DeviceLane* lane() const { return lane_.get(); }
  std::size_t stride_bytes() const { return stride_bytes_; }

 private:
  void allocate();
  [[noreturn]] void throw_no_memory(std::size_t bytes) const;
  void prepare(bool registered);
  void release() noexcept;

  std::shared_ptr<DeviceLane> lane_;
  cudaStream_t compute_;
  std::size_t plane_bytes_;
  std::size_t stride_bytes_;
  int planes_;
  int exceptions_at_start_;
  void* memory_ = nullptr;
  bool of_nccl_ = false;
  bool left_ = false;
  void* handle_ = nullptr;  ///< of the registration
};

}  // namespace lockstep::comm
