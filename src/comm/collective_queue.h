// The queue of started collectives of one communicator: tree sums and their two halves.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "comm/active_collective.h"
#include "comm/sum_plan.h"
#include "lockstep/comm/gradient_transport.h"

namespace lockstep::comm {

/// The computing thread advances collectives by polling at the boundaries of operations; there is no
/// communication thread. Measured on two emulated nodes of one core each, joined by 1 gbit/s: ten sums of
/// 0.75 MiB (63 ms for the bytes, 66 ms measured alone) started one after another during 79 ms of computing.
/// A step took 95, 92 and 91 ms with polling every 0.2, 1 and 5 ms; 94 to 112 ms with a thread that yields
/// and 92 to 97 ms with one that sleeps 50 us between polls; 93 to 97 ms if only the start of a sum advanced
/// the earlier ones. A thread gains nothing, and would need a lock, a core, and thread support of MPI. With
/// two emulated nodes on one computer all variants take 107 to 114 ms for 95 ms of computing, because the
/// processor carries the messages and nothing can overlap.
class CollectiveQueue {
 public:
  /// Collectives that run at once; later ones wait.
  static constexpr std::uint64_t max_active = NodeFlags::max_active;
  /// Messages use this many tags from first_tag on.
  static constexpr int tags = 2 * static_cast<int>(max_active);

  /// `topology` and `control` must outlive this object.
  CollectiveQueue(MPI_Comm comm, int rank, const Topology& topology, const NodeControl& control,
                  std::size_t chunk_bytes, int first_tag);
  CollectiveQueue(const CollectiveQueue&) = delete;
  CollectiveQueue& operator=(const CollectiveQueue&) = delete;

  /// The arguments must have been checked; `map` is null for an all-gather, `slices` of no ranks for a
  /// sum. Throws UsageError if the flat buffer lacks accumulators for the map.
  Work start(Collective::Kind kind, const TreeSum& sum, const NodeBuffer& flat_buffer, const ShardMap* map,
             const Slices& slices);
  /// Does everything that is possible now. Within one node it makes no MPI call.
  void progress();
  Work started() const { return started_; }
  Work completed() const { return completed_; }

 private:
  const SumPlan& plan_for(const ShardMap& map);
  ActiveCollective& active(Work work) { return active_[work % max_active]; }
  ActiveCollective::Request& waiting(Work work) { return waiting_[work % waiting_.size()]; }
  void activate(Work work);

  CollectiveContext context_;
  const Topology& topology_;
  int first_tag_;
  std::vector<std::unique_ptr<SumPlan>> plans_;
  std::vector<ActiveCollective::Request> waiting_;  ///< a ring, larger than the buckets of nearly any model
  std::deque<ActiveCollective> active_;             ///< a ring
  ActiveCollective::Room room_;                     ///< of the largest collective so far
  SumScratch scratch_;
  Work started_ = 0;    ///< by this rank
  Work activated_ = 0;  ///< the last that has begun
  Work added_ = 0;      ///< the last whose part this rank has done
  Work completed_ = 0;  ///< the last whose part every rank of the node has done
};

}  // namespace lockstep::comm
