#include "base/progress.h"

#include "base/clock.h"

namespace lockstep::progress {
namespace {

constexpr std::array<RankStatus::Word RankStatus::*, RankStatus::words> fields{
    &RankStatus::ticks,   &RankStatus::step,       &RankStatus::phase, &RankStatus::phase_since_ns,
    &RankStatus::waiting, &RankStatus::polling,    &RankStatus::polls, &RankStatus::bucket,
    &RankStatus::step_us, &RankStatus::heartbeats, &RankStatus::pid};
static_assert(sizeof(RankStatus) == sizeof(RankStatus::Snapshot), "fields[] lists every field");

RankStatus unpublished;
std::atomic<RankStatus*> current{&unpublished};

}  // namespace

const char* to_string(Phase phase) {
  constexpr std::array names{
      "start", "data", "forward", "backward", "sums", "header",           "optimizer", "evaluation",
      "save",  "end",  "failure", "program",  "load", "wrapping a model", "teardown"};
  const auto index = static_cast<std::size_t>(phase);
  return index < names.size() ? names[index] : "unknown";
}

RankStatus::Snapshot RankStatus::load() const {
  Snapshot snapshot;
  for (std::size_t i = 0; i < words; ++i) snapshot[i] = (this->*fields[i]).load();
  return snapshot;
}

void RankStatus::store(const Snapshot& snapshot) {
  for (std::size_t i = 0; i < words; ++i) (this->*fields[i]).store(snapshot[i]);
}

RankStatus& status() { return *current.load(std::memory_order_relaxed); }

void publish_in(RankStatus* place) {
  RankStatus* const next = place ? place : &unpublished;
  RankStatus* const last = current.load();
  if (next == last) return;
  // The first phase begins here, not at the start of the clock.
  if (last->phase_since_ns.load() == 0) last->phase_since_ns.store(monotonic_ns());
  next->store(last->load());
  current.store(next);
}

void enter(Phase phase) {
  RankStatus& own = status();
  own.phase.store(static_cast<std::int64_t>(phase), std::memory_order_relaxed);
  own.phase_since_ns.store(monotonic_ns(), std::memory_order_relaxed);
  tick();
}

void at_step(std::int64_t step, double step_ms) {
  RankStatus& own = status();
  own.step.store(step, std::memory_order_relaxed);
  own.step_us.store(static_cast<std::int64_t>(step_ms * 1e3), std::memory_order_relaxed);
  own.bucket.store(-1, std::memory_order_relaxed);
}

void at_bucket(int bucket) {
  status().bucket.store(bucket, std::memory_order_relaxed);
  tick();
}

}  // namespace lockstep::progress
