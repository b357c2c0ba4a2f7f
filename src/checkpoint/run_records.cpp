#include "checkpoint/run_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/output.h"
#include "base/text.h"
#include "lockstep/base/error.h"

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
      throw DataError("{} is no step with its metrics", quote(name));
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

void AttemptCounter::add(std::int64_t step) {
  Counts counts = read();
  ++counts[step];
  write(counts);
}

void AttemptCounter::take_back(std::int64_t step) {
  Counts counts = read();
  const auto found = counts.find(step);
  if (found == counts.end()) return;
  if (--found->second <= 0) counts.erase(found);
  write(counts);
}

void AttemptCounter::forget_up_to(std::int64_t step) {
  Counts counts = read();
  if (counts.empty() || counts.begin()->first > step) return;
  counts.erase(counts.begin(), counts.upper_bound(step));
  write(counts);
}

/// A file that is not there, or is not ours, counts nothing: it is advice.
AttemptCounter::Counts AttemptCounter::read() const {
  Counts counts;
  try {
    if (!exists(path_)) return counts;
    std::istringstream lines(read_text(path_));
    std::int64_t step = 0;
    for (int starts = 0; lines >> step >> starts;) counts[step] = starts;
  } catch (const Error&) {
  }
  return counts;
}

void AttemptCounter::write(const Counts& counts) const {
  if (counts.empty()) return remove_file(path_);
  std::string text;
  for (const auto& [step, starts] : counts) text += fmt::format("{} {}\n", step, starts);
  write_text_atomically(path_, text);
}

Retention::Retention(int keep, std::string metric)
    : keep_(keep), metric_(std::move(metric)), more_is_better_(metric_.ends_with("accuracy")) {}

void Retention::note(std::int64_t step, std::optional<double> metric) {
  if (metric && std::isfinite(*metric)) {
    scores_[step] = *metric;
  } else {
    scores_.erase(step);
  }
}

std::optional<std::int64_t> Retention::best(std::span<const std::int64_t> steps) const {
  const std::pair<const std::int64_t, double>* best = nullptr;
  for (const auto& candidate : scores_) {
    if (std::ranges::find(steps, candidate.first) == steps.end()) continue;
    if (!best || (more_is_better_ ? candidate.second > best->second : candidate.second < best->second))
      best = &candidate;
  }
  if (!best) return std::nullopt;
  return best->first;
}

std::vector<std::int64_t> Retention::to_remove(std::span<const std::int64_t> steps,
                                               std::int64_t newest) const {
  std::vector<std::int64_t> removed;
  if (keep_ <= 0) return removed;
  const std::optional<std::int64_t> best = this->best(steps);
  int kept = 0;
  for (const std::int64_t step : steps) {
    if (step > newest || ++kept <= keep_ || step == best) continue;
    removed.push_back(step);
  }
  return removed;
}

}  // namespace lockstep::checkpoint
