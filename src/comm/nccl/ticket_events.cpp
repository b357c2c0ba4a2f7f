#include "comm/nccl/ticket_events.h"

#include <algorithm>

#include "comm/nccl/check.h"

namespace lockstep::comm {

TicketEvents::~TicketEvents() {
  for (const cudaEvent_t event : events_) {
    if (event) cudaEventDestroy(event);
  }
}

void TicketEvents::enlarge() {
  constexpr std::size_t fewest = 64;  // more than the buckets of nearly any model
  std::vector<cudaEvent_t> larger(std::max(fewest, 2 * events_.size()));
  // All are in use: the last so many tickets have them.
  for (Ticket ticket = recorded_; ticket > recorded_ - events_.size(); --ticket)
    larger[ticket % larger.size()] = event(ticket);
  events_.swap(larger);
  for (cudaEvent_t& made : events_) {
    if (!made) check_cuda(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "cudaEventCreate", rank_);
  }
}

Ticket TicketEvents::record(cudaStream_t stream) {
  if (recorded_ - complete_ == events_.size()) {
    while (complete_ < recorded_ && complete(complete_ + 1)) {
    }
    if (recorded_ - complete_ == events_.size()) enlarge();
  }
  check_cuda(cudaEventRecord(event(recorded_ + 1), stream), "cudaEventRecord", rank_);
  return ++recorded_;
}

bool TicketEvents::complete(Ticket ticket) {
  if (ticket <= complete_) return true;
  const cudaError_t status = cudaEventQuery(event(ticket));
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // or the next launch of anybody takes it for its own
    return false;
  }
  check_cuda(status, "cudaEventQuery", rank_);
  complete_ = ticket;  // and all before it: they are of one stream
  return true;
}

void TicketEvents::hold(cudaStream_t stream, Ticket ticket) {
  if (ticket <= complete_) return;
  check_cuda(cudaStreamWaitEvent(stream, event(ticket), 0), "cudaStreamWaitEvent", rank_);
}

}  // namespace lockstep::comm
