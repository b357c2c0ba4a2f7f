// Tests written for CPUs, summed by the transport between GPUs: that of the emulated GPU, whose memory is the
// CPU's.
#include <cuda_runtime_api.h>

#include <utility>

#include "comm/nccl.h"
#include "support/forwarding.h"
#include "support/place.h"

namespace lockstep::test {
namespace {

/// A wait holds up the stream that computes; here it is the calling thread that computes.
class ForCpu final : public Forwarding {
 public:
  explicit ForCpu(std::unique_ptr<comm::Communicator> real) : Forwarding(*real), real_(std::move(real)) {}

  void wait(comm::Ticket ticket) override {
    Forwarding::wait(ticket);
    cudaStreamSynchronize(nullptr);
  }
  std::unique_ptr<comm::Communicator> split(int colour, int key) override {
    return std::make_unique<ForCpu>(Forwarding::split(colour, key));
  }

 private:
  std::unique_ptr<comm::Communicator> real_;
};

}  // namespace

std::unique_ptr<comm::Communicator> transport_over(comm::Communicator& mpi) {
  return std::make_unique<ForCpu>(
      comm::make_nccl_communicator(mpi, {.reproducible = true, .share_gpu = true}));
}

}  // namespace lockstep::test
