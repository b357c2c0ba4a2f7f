// Asking who is there when a barrier takes too long.
#include "comm/timed_barrier.h"

#include <algorithm>
#include <limits>

#include "comm/mpi_check.h"
#include "lockstep/base/clock.h"

namespace lockstep::comm {
namespace {

/// Whoever waits in the barrier polls all the time, so answers take milliseconds; this allows for crowded
/// cores.
constexpr double answer_time_s = 1.0;

}  // namespace

TimedBarrier::TimedBarrier(MPI_Comm comm, int rank, const Topology& topology, int first_tag)
    : comm_(comm),
      rank_(rank),
      topology_(topology),
      question_tag_(first_tag),
      answer_tag_(first_tag + 1),
      present_(topology.node_of_rank.size()) {}

void TimedBarrier::enter(double timeout_s) {
  ++barrier_;
  asking_ = false;
  std::fill(present_.begin(), present_.end(), false);
  present_[static_cast<std::size_t>(rank_)] = true;
  timeout_s_ = timeout_s;
  deadline_s_ = timeout_s > 0 ? monotonic_s() + timeout_s : std::numeric_limits<double>::infinity();
  check_mpi(MPI_Ibarrier(comm_, &request_), "MPI_Ibarrier", rank_);
}

bool TimedBarrier::passed() {
  int all_entered = 0;
  check_mpi(MPI_Test(&request_, &all_entered, MPI_STATUS_IGNORE), "MPI_Ibarrier", rank_);
  if (all_entered) return true;

  receive(question_tag_, true);
  if (asking_) receive(answer_tag_, false);
  if (monotonic_s() < deadline_s_) return false;
  if (!asking_) {
    ask();
    return false;
  }
  if (std::find(present_.begin(), present_.end(), false) != present_.end()) {
    throw FailureError("barrier: {} did not arrive within {} s (seen by rank {}); look for what {} did last",
                       missing(), timeout_s_, rank_,
                       std::count(present_.begin(), present_.end(), false) == 1 ? "it" : "they");
  }
  asking_ = false;  // the last one came while we asked: the barrier is about to open
  deadline_s_ = monotonic_s() + timeout_s_;
  return false;
}

void TimedBarrier::send(int to, int tag) {
  Note& note = sent_.emplace_back(Note{barrier_, MPI_REQUEST_NULL});
  check_mpi(MPI_Isend(&note.barrier, 1, MPI_UINT64_T, to, tag, comm_, &note.request),
            "MPI_Isend of a barrier", rank_);
}

void TimedBarrier::receive(int tag, bool answer) {
  while (true) {
    int there = 0;
    MPI_Status status;
    check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, tag, comm_, &there, &status), "MPI_Iprobe of a barrier", rank_);
    if (!there) return;
    std::uint64_t barrier = 0;
    check_mpi(MPI_Recv(&barrier, 1, MPI_UINT64_T, status.MPI_SOURCE, tag, comm_, MPI_STATUS_IGNORE),
              "MPI_Recv of a barrier", rank_);
    if (barrier != barrier_) continue;  // about an earlier barrier, which opened after all
    present_[static_cast<std::size_t>(status.MPI_SOURCE)] = true;
    if (answer) send(status.MPI_SOURCE, answer_tag_);
  }
}

void TimedBarrier::ask() {
  asking_ = true;
  deadline_s_ = monotonic_s() + answer_time_s;
  for (std::size_t other = 0; other < present_.size(); ++other) {
    if (!present_[other]) send(static_cast<int>(other), question_tag_);
  }
}

std::string TimedBarrier::missing() const {
  std::string names;
  int count = 0;
  for (std::size_t other = 0; other < present_.size(); ++other) {
    if (present_[other]) continue;
    const auto node = static_cast<std::size_t>(topology_.node_of_rank[other]);
    names += fmt::format("{}{} ({})", count++ > 0 ? ", " : "", other, topology_.host_names[node]);
  }
  return (count == 1 ? "rank " : "ranks ") + names;
}

}  // namespace lockstep::comm
