// A barrier that can say who is missing.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "lockstep/comm/topology.h"

namespace lockstep::comm {

/// A non-blocking barrier costs nothing extra while all goes well. A rank that has waited for too long asks
/// the others whether they are there; whoever waits in the same barrier answers, or has asked too.
class TimedBarrier {
 public:
  /// Messages use this many tags from first_tag on.
  static constexpr int tags = 2;

  /// `topology` must outlive this object.
  TimedBarrier(MPI_Comm comm, int rank, const Topology& topology, int first_tag);
  TimedBarrier(const TimedBarrier&) = delete;
  TimedBarrier& operator=(const TimedBarrier&) = delete;

  void enter(double timeout_s);
  /// True once all ranks have entered. Throws FailureError when some did not in time.
  bool passed();

 private:
  struct Note {
    std::uint64_t barrier;
    MPI_Request request;
  };

  void send(int to, int tag);
  /// Takes in the notes of one kind that have come; the senders are in this barrier. Answers them if asked
  /// to.
  void receive(int tag, bool answer);
  void ask();
  std::string missing() const;

  MPI_Comm comm_;
  int rank_;
  const Topology& topology_;
  int question_tag_;
  int answer_tag_;

  std::uint64_t barrier_ = 0;  ///< the number of the current one
  MPI_Request request_ = MPI_REQUEST_NULL;
  double timeout_s_ = 0;
  double deadline_s_ = 0;  ///< on the monotonic clock: when to ask, then when to give up
  bool asking_ = false;
  std::vector<bool> present_;
  std::deque<Note> sent_;  ///< a deque keeps their places while they are under way
};

}  // namespace lockstep::comm
