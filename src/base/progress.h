// Progress of this process: what it is doing, readable from outside while it is stuck.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace lockstep::progress {

/// What a rank is doing. `end`: its program has returned, and MPI ends. `failure`: it has thrown. `program`:
/// code or a collective of the program, outside the library. `teardown`: a destructor that waits for all
/// ranks.
enum class Phase : std::int64_t {
  start,
  data,
  forward,
  backward,
  sums,
  header,
  optimizer,
  evaluation,
  save,
  end,
  failure,
  program,
  load,
  wrapping,
  teardown,
};
const char* to_string(Phase phase);

/// What a rank publishes about itself. Other processes may read it at any moment, even while this one is
/// stopped or dead. The fields change one by one: a reader may see the new value of one and the old value
/// of another. All fields are words of one type, so that a status can be copied and sent as an array.
struct RankStatus {
  using Word = std::atomic<std::int64_t>;
  static_assert(Word::is_always_lock_free);

  Word ticks{0};           ///< signs of progress so far, from any thread
  Word step{0};            ///< the current step, from 1; 0: before the first
  Word phase{0};           ///< a Phase
  Word phase_since_ns{0};  ///< when it began, on the monotonic clock of the rank's node
  Word waiting{0};         ///< above 0: the rank waits for other ranks
  Word polling{0};         ///< how many of these waits poll
  Word polls{0};           ///< polls so far: signs of life of a wait that polls
  Word bucket{-1};         ///< the last bucket of gradients that was started or waited for in this step
  Word step_us{0};         ///< how long recent steps took; 0: no step is done
  Word heartbeats{0};      ///< of the watchdog's thread, as signs of life of the process
  Word pid{0};

  Phase current_phase() const { return static_cast<Phase>(phase.load()); }

  static constexpr std::size_t words = 11;
  using Snapshot = std::array<std::int64_t, words>;
  Snapshot load() const;
  void store(const Snapshot& snapshot);
};

/// The status of this process. There is one per process: one thread trains.
RankStatus& status();
/// From now on this process writes its status to `place`, which begins as a copy of the last status; nullptr:
/// private memory.
void publish_in(RankStatus* place);

/// Called by the thread that trains. None of them allocates, locks or makes a system call.
void enter(Phase phase);
void at_step(std::int64_t step, double step_ms);
void at_bucket(int bucket);

/// During its life the rank is in this phase, afterwards in the previous one; Phase::end is final.
class During {
 public:
  explicit During(Phase phase) : before_(status().current_phase()) {
    if (phase != before_ && before_ != Phase::end && before_ != Phase::failure) enter(phase);
  }
  ~During() {
    if (status().current_phase() != before_) enter(before_);
  }
  During(const During&) = delete;
  During& operator=(const During&) = delete;

 private:
  const Phase before_;
};

/// For a thread that works beside the training thread: its ticks count only while the training thread waits
/// for it (true). At other times they would hide a hang.
inline thread_local const std::atomic<bool>* ticks_count_while = nullptr;

/// A sign of progress inside a phase that may take long. Any thread.
inline void tick() {
  if (!ticks_count_while || *ticks_count_while) status().ticks.fetch_add(1, std::memory_order_relaxed);
}

/// During its life this rank waits for other ranks, so a lack of progress is not its fault.
class Waiting {
 public:
  Waiting() { add(status().waiting, 1); }
  ~Waiting() {
    add(status().waiting, -1);
    tick();
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  friend class Polling;
  static void add(RankStatus::Word& word,
                  int change) {  // only one thread writes it: needs no atomic addition
    word.store(word.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
  }
};

/// A wait that polls. If it stops polling, this rank is stuck after all.
class Polling {
 public:
  Polling() { Waiting::add(status().polling, 1); }
  ~Polling() { Waiting::add(status().polling, -1); }
  Polling(const Polling&) = delete;
  Polling& operator=(const Polling&) = delete;

  void count_poll() { Waiting::add(status().polls, 1); }

 private:
  Waiting waiting_;
};

}  // namespace lockstep::progress
