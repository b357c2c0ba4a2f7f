#include "base/progress.h"

#include <array>
#include <chrono>

namespace lockstep::progress {
namespace {

Record own;
std::atomic<Record*> current{&own};

void copy(const Record& from, Record& to) {
  to.marks.store(from.marks.load());
  to.step.store(from.step.load());
  to.since_ns.store(from.since_ns.load());
  to.phase.store(from.phase.load());
  to.waiting.store(from.waiting.load());
  to.polling.store(from.polling.load());
  to.looks.store(from.looks.load());
  to.bucket.store(from.bucket.load());
  to.step_ms.store(from.step_ms.load());
}

std::int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
static_assert(std::chrono::steady_clock::period::den == 1'000'000'000);

}  // namespace

const char* to_string(Phase phase) {
  constexpr std::array<const char*, phases> names{"start",      "data",   "forward",   "backward",
                                                  "sums",       "header", "optimizer", "evaluation",
                                                  "checkpoint", "end",    "failure"};
  const auto index = static_cast<std::size_t>(phase);
  return index < names.size() ? names[index] : "unknown";
}

Record& here() { return *current.load(std::memory_order_relaxed); }

void write_to(Record* record) {
  Record* const next = record ? record : &own;
  Record* const last = current.load();
  if (next == last) return;
  // No phase was entered yet: the first one lasts since it can be seen, not since the clock began.
  if (last->since_ns.load() == 0) last->since_ns.store(now_ns());
  copy(*last, *next);
  current.store(next);
}

void enter(Phase phase) {
  Record& record = here();
  record.phase.store(phase, std::memory_order_relaxed);
  record.since_ns.store(now_ns(), std::memory_order_relaxed);
  mark();
}

void at_step(std::int64_t step, double step_ms) {
  Record& record = here();
  record.step.store(step, std::memory_order_relaxed);
  record.step_ms.store(static_cast<float>(step_ms), std::memory_order_relaxed);
  record.bucket.store(-1, std::memory_order_relaxed);
}

void at_bucket(int bucket) {
  here().bucket.store(bucket, std::memory_order_relaxed);
  mark();
}

}  // namespace lockstep::progress
