// Replaces the transport between GPUs in a build without CUDA: every use is an error with the reason.
#include "comm/nccl.h"
#include "lockstep/base/error.h"

namespace lockstep::comm {

NcclFound find_nccl() { return {.version = {}, .problem = "this build computes on CPUs only", .remedy = {}}; }

std::string sharing_problem(HostGroup&, int) { return {}; }

std::unique_ptr<GradientTransport> make_nccl_transport(HostGroup& host, const NcclOptions& options) {
  throw UsageError(
      "rank {}: there is no NCCL for GPU {}: this version computes on CPUs only; set train.device = cpu or "
      "auto, or build with CUDA and NCCL",
      host.rank(), options.device);
}

}  // namespace lockstep::comm
