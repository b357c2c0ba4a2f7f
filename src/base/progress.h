// Progress of this process, readable while it is stuck: by a watchdog, by a report.
#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep::progress {

/// What a rank is doing. `end`: its program is over, MPI ends; `failure`: it has thrown, and is ending.
enum class Phase : std::uint32_t {
  start,
  data,
  forward,
  backward,
  sums,
  header,
  optimizer,
  evaluation,
  checkpoint,
  end,
  failure,
};
constexpr int phases = 11;
const char* to_string(Phase phase);

/// Plain lock-free words: they may be in memory that other processes read, at any moment, even when this one
/// is stopped. Fields change one by one; a reader may see the newer of one next to the older of another.
struct Record {
  std::atomic<std::uint64_t> marks{0};    ///< signs of progress so far, of any thread
  std::atomic<std::int64_t> step{0};      ///< the step at hand, from 1; 0: none yet
  std::atomic<std::int64_t> since_ns{0};  ///< since when in this phase, on the monotonic clock
  std::atomic<Phase> phase{Phase::start};
  std::atomic<std::uint32_t> waiting{0};  ///< above 0: for other ranks
  std::atomic<std::uint32_t> polling{0};  ///< of these, waits that look() again and again
  std::atomic<std::uint64_t> looks{0};    ///< signs of life of a wait that does
  std::atomic<std::int32_t> bucket{-1};   ///< of gradients, the last one started or waited for in this step
  std::atomic<float> step_ms{0};          ///< recent steps took
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<float>::is_always_lock_free);

/// That of this process. A record is process-wide by nature: there is one thread that trains.
Record& here();
/// From now on this process writes `record` (none: its own again), which begins as a copy of the last one.
void write_to(Record* record);

/// Called by the thread that trains. None allocates, locks or calls the system, but for the clock.
void enter(Phase phase);
void at_step(std::int64_t step, double step_ms);
void at_bucket(int bucket);

/// Set by a thread that works next to the one that trains: its marks count while this is true (that one waits
/// for it); at other times they would hide a hang.
inline thread_local const std::atomic<bool>* waited_for = nullptr;

/// A sign of progress inside a phase that may take long. Any thread.
inline void mark() {
  if (!waited_for || *waited_for) here().marks.fetch_add(1, std::memory_order_relaxed);
}

/// While it lives this rank waits for others: not it is to blame for a silence.
class Waiting {
 public:
  Waiting() { change(here().waiting, 1); }
  ~Waiting() {
    change(here().waiting, -1);
    mark();
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  friend class Polling;
  static void change(std::atomic<std::uint32_t>& count, int by) {
    count.store(count.load(std::memory_order_relaxed) + static_cast<std::uint32_t>(by),
                std::memory_order_relaxed);
  }
};

/// The same, looking again and again: one that no longer looks is stuck itself.
class Polling {
 public:
  Polling() { Waiting::change(here().polling, 1); }
  ~Polling() { Waiting::change(here().polling, -1); }
  Polling(const Polling&) = delete;
  Polling& operator=(const Polling&) = delete;

  void look() {
    auto& looks = here().looks;
    looks.store(looks.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

 private:
  Waiting waiting_;
};

}  // namespace lockstep::progress
