// Private to the module: telling slow from stuck, from what can be seen of each rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::train {

/// Fed every few moments with the counters of all ranks. Time is that of the watcher: while it was stopped
/// itself, nothing counts.
class HangJudge {
 public:
  /// What is seen of a rank: signs of progress and of life so far, and whether it waits for others, with
  /// its looks so far if it looks again and again.
  struct Sight {
    std::uint64_t marks = 0, beats = 0;
    bool waiting = false, polling = false;
    std::uint64_t looks = 0;
  };
  enum class State {
    fine,
    stuck,   ///< alive, waits for nobody (or looks no longer for whom it does), and gets no further
    silent,  ///< its process gives no sign of life
  };

  /// slack_s: how much later than it happens something may be seen.
  HangJudge(int ranks, double timeout_s, double slack_s)
      : seen_(static_cast<std::size_t>(ranks)), timeout_s_(timeout_s), slack_s_(slack_s) {}

  void see(int rank, const Sight& sight, double now_s);
  /// Nothing can be known of this rank at present: it is not judged.
  void lose_sight(int rank) { of(rank).known = false; }

  State state(int rank, double now_s) const;
  /// No rank that is known has got any further for longer than the timeout, and all wait: for one another, or
  /// for one that is not known.
  bool all_wait(double now_s) const;

  double idle_s(int rank, double now_s) const { return now_s - of(rank).marked_s; }
  double silent_s(int rank, double now_s) const { return now_s - of(rank).beaten_s; }
  bool known(int rank) const { return of(rank).known; }

 private:
  struct Seen {
    Sight sight;
    double marked_s = 0, beaten_s = 0, looked_s = 0;
    bool known = false;
  };
  Seen& of(int rank) { return seen_[static_cast<std::size_t>(rank)]; }
  const Seen& of(int rank) const { return seen_[static_cast<std::size_t>(rank)]; }

  std::vector<Seen> seen_;
  double timeout_s_, slack_s_;
};

}  // namespace lockstep::train
