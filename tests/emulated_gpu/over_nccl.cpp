// Tests written for CPUs, summed by the transport between GPUs: that of the emulated GPU, whose memory is the
// CPU's.
#include <cuda_runtime_api.h>

#include <utility>

#include "comm/nccl/on_gpu.h"
#include "support/forwarding.h"
#include "support/place.h"

namespace lockstep::test {
namespace {

/// A wait holds up the stream that computes; here it is the calling thread that computes.
class ForCpu final : public Forwarding {
 public:
  /// `host` must outlive it, or is `owned`.
  ForCpu(comm::CpuCommunicator& host, std::unique_ptr<comm::CpuCommunicator> owned = nullptr)
      : ForCpu(host, std::move(owned), make(host)) {}

  void order_after(comm::Work work) override {
    Forwarding::order_after(work);
    cudaStreamSynchronize(nullptr);
  }
  std::unique_ptr<comm::GradientTransport> duplicate() override { return split(0, rank()); }
  std::unique_ptr<comm::CpuCommunicator> split(int colour, int key) override {
    std::unique_ptr<comm::CpuCommunicator> part = Forwarding::split(colour, key);
    comm::CpuCommunicator& host = *part;
    return std::make_unique<ForCpu>(host, std::move(part));
  }

 private:
  ForCpu(comm::CpuCommunicator& host, std::unique_ptr<comm::CpuCommunicator> owned,
         std::unique_ptr<comm::GradientTransport> nccl)
      : Forwarding(host, *nccl), owned_(std::move(owned)), nccl_(std::move(nccl)) {}
  static std::unique_ptr<comm::GradientTransport> make(comm::HostGroup& host) {
    return comm::make_nccl_transport(host,
                                     {.device = own_gpu(host), .reproducible = true, .share_gpu = true});
  }

  std::unique_ptr<comm::CpuCommunicator> owned_;  // a part's
  std::unique_ptr<comm::GradientTransport> nccl_;
};

}  // namespace

std::unique_ptr<comm::CpuCommunicator> transport_over(comm::CpuCommunicator& mpi) {
  return std::make_unique<ForCpu>(mpi);
}

}  // namespace lockstep::test
