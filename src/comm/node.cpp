// Setting up what a node shares.
#include "comm/node.h"

#include "lockstep/base/error.h"

namespace lockstep::comm {

NodeBoard::NodeBoard(MPI_Comm node, int local_rank, int local_ranks)
    : local_rank_(local_rank), local_ranks_(local_ranks), window_(node, sizeof(NodeFlags)) {
  new (window_.segment(local_rank))
      NodeFlags;  // the counters start at the zero that the segment holds already
}

NodeArena::NodeArena(const void* owner, MPI_Comm node, int local_rank, std::size_t plane_bytes, int planes)
    : owner_(owner),
      local_rank_(local_rank),
      plane_bytes_(plane_bytes),
      stride_bytes_((plane_bytes + SharedWindow::alignment - 1) / SharedWindow::alignment *
                    SharedWindow::alignment),
      planes_(planes),
      window_(node, stride_bytes_ * static_cast<std::size_t>(planes)) {}

std::byte* NodeArena::plane(int index) {
  if (index < 0 || index >= planes_) throw UsageError("arena: no plane {} among {}", index, planes_);
  return plane_of(local_rank_, index);
}

}  // namespace lockstep::comm
