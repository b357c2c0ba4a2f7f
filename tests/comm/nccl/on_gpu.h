// A rank's GPU, a stream that computes, and the transport between GPUs; flat buffers with a mirror in the
// CPU's memory.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "comm/nccl.h"
#include "comm/nccl/connection.h"
#include "support/world.h"

namespace lockstep::test {

/// 0 without a driver, too.
inline int visible_gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

/// Of the visible GPUs, the calling rank's: each has its own where there are enough.
inline int own_gpu(comm::HostGroup& ranks = world()) {
  const auto rank = static_cast<std::size_t>(ranks.rank());
  return ranks.topology().local_rank_of_rank[rank] % std::max(1, visible_gpus());
}

class OnGpu {
 public:
  explicit OnGpu(bool reproducible, comm::HostGroup& ranks = world()) {
    const int rank = world().rank(), device = own_gpu();
    comm::check_cuda(cudaSetDevice(device), "cudaSetDevice", rank);
    comm::check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate", rank);
    transport_ =
        comm::make_nccl_transport(ranks, {.device = device, .stream = stream_, .reproducible = reproducible});
  }
  ~OnGpu() {
    transport_.reset();
    cudaStreamDestroy(stream_);
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  cudaStream_t stream() const { return stream_; }
  comm::GradientTransport& transport() const { return *transport_; }

 private:
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<comm::GradientTransport> transport_;
};

/// In plain memory.
class HostBuffer final : public comm::FlatBuffer {
 public:
  HostBuffer(std::size_t accumulator_bytes, int accumulators)
      : accumulator_bytes_(accumulator_bytes),
        accumulators_(accumulators),
        memory_(accumulator_bytes * static_cast<std::size_t>(accumulators)) {}
  std::byte* accumulator(int index) override {
    return memory_.data() + accumulator_bytes_ * static_cast<std::size_t>(index);
  }
  int accumulators() const override { return accumulators_; }
  std::size_t accumulator_bytes() const override { return accumulator_bytes_; }

 private:
  std::size_t accumulator_bytes_;
  int accumulators_;
  std::vector<std::byte> memory_;
};

/// Copies go along the stream, so they come after what was asked of it, as computing would.
class MirroredBuffer {
 public:
  MirroredBuffer(comm::GradientTransport& transport, cudaStream_t stream, std::size_t accumulator_bytes,
                 int accumulators)
      : here(accumulator_bytes, accumulators),
        there(transport.allocate_buffer(accumulator_bytes, accumulators)),
        stream_(stream) {}

  void upload() {
    for (int accumulator = 0; accumulator < here.accumulators(); ++accumulator)
      copy(here.accumulator(accumulator), there->accumulator(accumulator));
  }
  /// Accumulator 0, when the stream is done.
  void download() {
    copy(there->accumulator(0), here.accumulator(0));
    comm::check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize", world().rank());
  }

  HostBuffer here;
  std::unique_ptr<comm::FlatBuffer> there;

 private:
  void copy(const std::byte* from, std::byte* to) {
    comm::check_cuda(cudaMemcpyAsync(to, from, here.accumulator_bytes(), cudaMemcpyDefault, stream_),
                     "cudaMemcpyAsync", world().rank());
  }
  cudaStream_t stream_;
};

}  // namespace lockstep::test
