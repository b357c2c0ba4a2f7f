// Setting up what a node shares.
#include "comm/node.h"

#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::comm {

NodeBoard::NodeBoard(MPI_Comm node, int local_rank, std::vector<int> ranks)
    : local_rank_(local_rank), ranks_(std::move(ranks)), window_(node, sizeof(NodeFlags)) {
  new (window_.segment(local_rank)) NodeFlags;  // counters start at zero
}

void NodeBoard::publish(std::uint64_t ticket, const Exchange& exchange) const {
  mine().exchanges[ticket % NodeFlags::max_active] = exchange;
  mine().signatures[ticket % NodeFlags::max_active] = exchange.signature();
  mine().started.store(ticket, std::memory_order_release);
}

void NodeBoard::check_same_exchange(std::uint64_t ticket) const {
  const std::uint64_t place = ticket % NodeFlags::max_active;
  for (int peer = 1; peer < local_ranks(); ++peer) {
    if (of(peer).signatures[place] == of(0).signatures[place]) continue;
    const Exchange& first = of(0).exchanges[place];
    const Exchange& other = of(peer).exchanges[place];
    throw FailureError(
        "ticket {}: rank {} started {}, rank {} {}; every rank must start the same exchanges in the same "
        "order",
        ticket, ranks_.front(), describe(first, other), ranks_[static_cast<std::size_t>(peer)],
        describe(other, first));
  }
}

void NodeBoard::check_same_gather(std::uint64_t gather) const {
  for (int peer = 1; peer < local_ranks(); ++peer) {
    const GatherNote& first = of(0).gathers[gather % 2];
    const GatherNote& other = of(peer).gathers[gather % 2];
    if (first == other) continue;
    throw FailureError(
        "gather {}: rank {} gathers {}, rank {} {}; every rank must make the same gathers in the same order",
        gather, ranks_.front(), describe(first), ranks_[static_cast<std::size_t>(peer)], describe(other));
  }
}

NodeArena::NodeArena(const void* owner, std::uint64_t number, MPI_Comm node, int local_rank,
                     std::size_t plane_bytes, int planes)
    : owner_(owner),
      number_(number),
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
