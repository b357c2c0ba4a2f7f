// Tests written for CPUs, summed by the transport between GPUs: pretended ones, whose memory is the CPU's.
#include "lockstep/comm/nccl.h"
#include "support/place.h"

namespace lockstep::test {

std::string reason_to_skip() { return {}; }
std::unique_ptr<comm::Communicator> transport_over(comm::Communicator& mpi) {
  return comm::make_nccl_communicator(mpi, {.reproducible = true, .share_gpu = true});
}

}  // namespace lockstep::test
