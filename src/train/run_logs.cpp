#include "train/run_logs.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep::train {
namespace {

/// A number that is not finite is null in metrics.jsonl, and a point of its own in TensorBoard.
report::Event scalars_of(const nlohmann::json& line) {
  report::Event event(line.at("step").get<std::int64_t>());
  for (const auto& [name, value] : line.items()) {
    if (name == "step") continue;
    if (value.is_number()) event.add_scalar(name, value.get<double>());
    if (value.is_null()) event.add_scalar(name, std::numeric_limits<double>::quiet_NaN());
  }
  return event;
}

}  // namespace

RunLogs::RunLogs(const RunLogPaths& paths, const report::ResumePoint& point, bool writes, Say warn)
    : metrics_path_(paths.metrics), warn_(std::move(warn)) {
  if (!writes) return;
  metrics_.emplace(paths.metrics, point.step, point.evaluated, true);
  if (!paths.events.empty()) events_.emplace(paths.events, point);
}

/// Errors name the file first; the reason is what follows. A full disk is one reason for all logs.
template <class Write>
void RunLogs::attempt(const std::string& path, const Write& write) {
  try {
    write();
  } catch (const Error& error) {
    const std::string text = error.what();
    const std::string reason = text.starts_with(path) ? text.substr(path.size()) : text;
    if (said_.insert(reason).second)
      warn_(text + "; the run continues, and what it logs until then is lost (said once)");
  }
}

void RunLogs::append(const nlohmann::json& line) {
  if (!metrics_) return;
  const Timed timed(*this);
  attempt(metrics_path_, [&] { metrics_->append(line); });
  if (events_) append(scalars_of(line));
}

void RunLogs::append(const report::Event& event) {
  if (!events_) return;
  const Timed timed(*this);
  attempt(events_->path(), [&] { events_->append(event); });
}

void RunLogs::sync() {
  if (metrics_) attempt(metrics_path_, [&] { metrics_->sync(); });
  if (events_) attempt(events_->path(), [&] { events_->sync(); });
}

double RunLogs::take_cpu_ms() { return std::exchange(cpu_ms_, 0); }

RunLogs::Timed::Timed(RunLogs& logs) : logs_(logs) {
  if (logs_.timed_++ == 0) logs_.timed_from_ms_ = thread_cpu_ms();
}

RunLogs::Timed::~Timed() {
  if (--logs_.timed_ == 0) logs_.cpu_ms_ += thread_cpu_ms() - logs_.timed_from_ms_;
}

}  // namespace lockstep::train
