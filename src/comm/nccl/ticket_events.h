// Which exchanges of a stream are complete: an event behind each, in a ring that the steady state never
// enlarges.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

class TicketEvents {
 public:
  explicit TicketEvents(int rank) : rank_(rank) {}
  ~TicketEvents();
  TicketEvents(const TicketEvents&) = delete;
  TicketEvents& operator=(const TicketEvents&) = delete;

  /// The next ticket: complete when the stream has done all that was asked of it so far.
  Ticket record(cudaStream_t stream);
  Ticket recorded() const { return recorded_; }
  /// Looks at the device without waiting. The ticket must have been recorded.
  bool complete(Ticket ticket);
  /// What is asked of `stream` from now on begins when the ticket is complete.
  void hold(cudaStream_t stream, Ticket ticket);

 private:
  cudaEvent_t& event(Ticket ticket) { return events_[ticket % events_.size()]; }
  void enlarge();

  int rank_;
  std::vector<cudaEvent_t> events_;  ///< those of (complete_, recorded_] are in use
  Ticket recorded_ = 0;
  Ticket complete_ = 0;  ///< these are known to be
};

}  // namespace lockstep::comm
