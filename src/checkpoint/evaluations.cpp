#include "checkpoint/evaluations.h"

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/output.h"
#include "lockstep/base/error.h"
#include "lockstep/base/names.h"

namespace lockstep::checkpoint {
namespace {

/// JSON has no such numbers: they are written as null.
constexpr double not_finite = std::numeric_limits<double>::quiet_NaN();

std::map<std::int64_t, Evaluations::Metrics> parse(const std::string& text) {
  std::map<std::int64_t, Evaluations::Metrics> of_step;
  const nlohmann::json all = nlohmann::json::parse(text);
  for (const auto& [name, metrics] : all.items()) {
    std::int64_t step = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
    if (error != std::errc() || end != name.data() + name.size() || !metrics.is_object())
      throw DataError("{} is no step with its metrics", in_quotes(name));
    for (const auto& [metric, value] : metrics.items())
      of_step[step][metric] = value.is_number() ? value.get<double>() : not_finite;
  }
  return of_step;
}

}  // namespace

Evaluations::Evaluations(std::string path, const Log& log) : path_(std::move(path)) {
  if (!exists(path_)) return;
  try {
    of_step_ = parse(read_text(path_));
  } catch (const std::exception& error) {  // JSON's, too
    log.warning("{}: not read, what it said about checkpoints is lost: {}", path_, error.what());
  }
}

const double* Evaluations::find(std::int64_t step, const std::string& metric) const {
  const auto metrics = of_step_.find(step);
  if (metrics == of_step_.end()) return nullptr;
  const auto found = metrics->second.find(metric);
  return found == metrics->second.end() ? nullptr : &found->second;
}

void Evaluations::set(std::int64_t step, const Metrics& metrics) {
  of_step_[step] = metrics;
  write();
}

void Evaluations::forget(std::span<const std::int64_t> steps) {
  std::size_t gone = 0;
  for (const std::int64_t step : steps) gone += of_step_.erase(step);
  if (gone > 0) write();
}

void Evaluations::forget_after(std::int64_t step) {
  const auto later = of_step_.upper_bound(step);
  if (later == of_step_.end()) return;
  of_step_.erase(later, of_step_.end());
  write();
}

void Evaluations::write() const {
  nlohmann::json all = nlohmann::json::object();
  for (const auto& [step, metrics] : of_step_) all[std::to_string(step)] = metrics;
  write_text_atomically(path_, all.dump(1) + "\n");
}

}  // namespace lockstep::checkpoint
