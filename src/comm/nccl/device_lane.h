// DeviceLane: a stream of a GPU and the NCCL communicator that works on it. It carries out DeviceCalls.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "comm/nccl/connection.h"
#include "comm/nccl/device_collectives.h"
#include "comm/nccl/kernels.h"

namespace lockstep::comm {

class DeviceLane final : public DeviceCalls {
 public:
  /// The stream has the highest priority, so that messages leave early.
  /// `host` must outlive it.
  DeviceLane(int device, HostGroup& host, double timeout_s);
  ~DeviceLane() override;
  DeviceLane(const DeviceLane&) = delete;
  DeviceLane& operator=(const DeviceLane&) = delete;

  /// Makes the rank's GPU the calling thread's.
  void use_device() const;
  NcclConnection& connection() const { return *connection_; }
  int rank() const { return rank_; }
  cudaStream_t stream() const { return on_.stream; }

  /// Copies the steps to the device, where they stay for the lane's life.
  void upload(SumProgram& program);
  /// Waits until the stream has finished; false after a failure or a time limit.
  bool drain(cudaStream_t stream) noexcept;

  std::byte* scratch(std::size_t bytes) override;
  void zero(std::byte* memory, std::size_t bytes) override;
  void add(const TreeAddition& addition) override;
  void cast_to(const std::byte* values, std::byte* cast, std::int64_t count, DType comm_dtype) override;
  void cast_from(const std::byte* cast, std::byte* values, std::int64_t count, DType comm_dtype) override;
  void begin_group() override { connection_->begin_group(); }
  void end_group() override { connection_->end_group(); }
  void all_reduce(std::byte* values, std::int64_t count, DType dtype) override;
  void reduce_scatter(std::byte* values, std::int64_t count, DType dtype) override;
  void reduce(std::byte* values, std::int64_t count, DType dtype, int root) override;
  void all_gather(std::byte* data, std::size_t bytes) override;
  void broadcast(std::byte* data, std::size_t bytes, int root) override;
  void send(const std::byte* data, std::size_t bytes, int to) override;
  void receive(std::byte* data, std::size_t bytes, int from) override;

 private:
  bool drain(cudaStream_t stream, double timeout_s) noexcept;
  void check(cudaError_t status, const char* call) const;
  void enlarge_scratch(std::size_t bytes);

  int device_;
  int rank_;
  DeviceLaunch on_;
  std::unique_ptr<NcclConnection> connection_;
  void* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0;
  bool in_graph_ = false;         ///< a capture has used the scratch memory
  std::vector<void*> of_graphs_;  ///< smaller blocks that captures have used
  std::vector<void*> uploads_;
};

}  // namespace lockstep::comm
