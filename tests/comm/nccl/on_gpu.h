// A rank's GPU, a stream that computes, and the transport between GPUs; arenas with a mirror in the CPU's
// memory.
#pragma once

#include <cuda_runtime_api.h>

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

class OnGpu {
 public:
  explicit OnGpu(bool reproducible, comm::HostGroup& ranks = world()) {
    const int rank = world().rank();
    const int place = world().topology().local_rank_of_rank[static_cast<std::size_t>(rank)];
    const int device = place % visible_gpus();
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
class HostArena final : public comm::Arena {
 public:
  HostArena(std::size_t plane_bytes, int planes)
      : plane_bytes_(plane_bytes), planes_(planes), memory_(plane_bytes * static_cast<std::size_t>(planes)) {}
  std::byte* plane(int index) override {
    return memory_.data() + plane_bytes_ * static_cast<std::size_t>(index);
  }
  int planes() const override { return planes_; }
  std::size_t plane_bytes() const override { return plane_bytes_; }

 private:
  std::size_t plane_bytes_;
  int planes_;
  std::vector<std::byte> memory_;
};

/// Copies go along the stream, so they come after what was asked of it, as computing would.
class MirroredArena {
 public:
  MirroredArena(comm::GradientTransport& transport, cudaStream_t stream, std::size_t plane_bytes, int planes)
      : here(plane_bytes, planes), there(transport.allocate_arena(plane_bytes, planes)), stream_(stream) {}

  void upload() {
    for (int plane = 0; plane < here.planes(); ++plane) copy(here.plane(plane), there->plane(plane));
  }
  /// Plane 0, when the stream is done.
  void download() {
    copy(there->plane(0), here.plane(0));
    comm::check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize", world().rank());
  }

  HostArena here;
  std::unique_ptr<comm::Arena> there;

 private:
  void copy(const std::byte* from, std::byte* to) {
    comm::check_cuda(cudaMemcpyAsync(to, from, here.plane_bytes(), cudaMemcpyDefault, stream_),
                     "cudaMemcpyAsync", world().rank());
  }
  cudaStream_t stream_;
};

}  // namespace lockstep::test
