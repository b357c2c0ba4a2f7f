// Private to the module: which ranks are stuck, silent, or waiting for one another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/progress.h"

namespace lockstep::train {

/// Observes the status of every rank, many times per timeout. now_s is the time of the observer, and must not
/// advance while the observer itself is stopped.
class HangDetector {
 public:
  enum class Health {
    healthy,
    stuck,  ///< the process runs, but makes no progress and does not wait (or no longer polls while it waits)
    silent,  ///< the process shows no sign of life
  };

  /// delay_s: maximal age of an observation.
  HangDetector(int ranks, double timeout_s, double delay_s)
      : ranks_(static_cast<std::size_t>(ranks)), timeout_s_(timeout_s), delay_s_(delay_s) {}

  void observe(int rank, const progress::RankStatus& status, double now_s) {
    Observed& last = ranks_[static_cast<std::size_t>(rank)];
    const std::int64_t waiting = status.waiting.load();
    const auto note = [&](Counter& counter, std::int64_t value, bool counts_as_change) {
      if (!last.reachable || counts_as_change || value != counter.value) counter.changed_s = now_s;
      counter.value = value;
    };
    note(last.ticks, status.ticks.load(), false);
    note(last.heartbeats, status.heartbeats.load(), false);
    note(last.polls, status.polls.load(), waiting != status.polling.load());
    last.waiting = waiting > 0;
    last.reachable = true;
  }
  /// The rank cannot be observed at present. It counts as healthy.
  void mark_unreachable(int rank) { ranks_[static_cast<std::size_t>(rank)].reachable = false; }
  bool reachable(int rank) const { return last(rank).reachable; }

  Health health(int rank, double now_s) const {
    if (!reachable(rank)) return Health::healthy;
    if (silent_s(rank, now_s) > timeout_s_) return Health::silent;
    const bool waits = last(rank).waiting && now_s - last(rank).polls.changed_s <= timeout_s_;
    return !waits && idle_s(rank, now_s) > timeout_s_ ? Health::stuck : Health::healthy;
  }
  /// Every reachable rank waits, and none has made progress for longer than the timeout: they wait for one
  /// another, or for a rank that is not reachable.
  bool all_wait(double now_s) const {
    bool any = false;
    for (const Observed& rank : ranks_) {
      if (!rank.reachable) continue;
      if (!rank.waiting || now_s - rank.ticks.changed_s <= timeout_s_ + delay_s_) return false;
      any = true;
    }
    return any;
  }
  /// The time without progress of the rank.
  double idle_s(int rank, double now_s) const { return now_s - last(rank).ticks.changed_s; }
  /// The time without a sign of life of its process.
  double silent_s(int rank, double now_s) const { return now_s - last(rank).heartbeats.changed_s; }

 private:
  struct Counter {
    std::int64_t value = 0;
    double changed_s = 0;
  };
  struct Observed {
    Counter ticks, heartbeats, polls;
    bool waiting = false, reachable = false;
  };
  const Observed& last(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  std::vector<Observed> ranks_;
  double timeout_s_, delay_s_;
};

}  // namespace lockstep::train
