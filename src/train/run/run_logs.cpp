#include "train/run/run_logs.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/clock.h"
#include "base/files.h"
#include "base/output.h"
#include "base/streams.h"
#include "base/text.h"
#include "lockstep/autograd/partition.h"
#include "lockstep/base/error.h"
#include "lockstep/kernels/backend.h"
#include "report/report.h"
#include "report/run_log.h"

namespace lockstep::train {
namespace {

/// A number that is not finite is null in metrics.jsonl, and a point of its own in TensorBoard.
void add_scalar(report::Event& event, const std::string& tag, const nlohmann::json& value) {
  if (value.is_number()) event.add_scalar(tag, value.get<double>());
  if (value.is_null()) event.add_scalar(tag, std::numeric_limits<double>::quiet_NaN());
}

report::Event scalars_of(const nlohmann::json& line) {
  report::Event event(line.at("step").get<std::int64_t>());
  for (const auto& [name, value] : line.items()) {
    if (name == "step") continue;
    add_scalar(event, name, value);
    if (!value.is_structured()) continue;
    for (const auto& [key, element] : value.items()) add_scalar(event, name + "/" + key, element);
  }
  return event;
}

void add_histogram(report::Event& event, const std::string& tag, const Tensor& values, double divisor,
                   kernels::Backend& backend) {
  const Tensor here = kernels::on_cpu(values, &backend);
  report::Histogram histogram;
  histogram.add({here.data<float>(), static_cast<std::size_t>(here.numel())}, divisor);
  event.add_histogram(tag, histogram);
}

/// All elements, including those of other ranks.
Tensor whole_gradient(GradientSource& source, std::size_t index) {
  const Param& param = *source.params()[index];
  const Partition* const partition = source.partition();
  if (!partition) return param.gradient;
  const Partition::OwnedElements own{
      .param = index, .elements = partition->part(index, param.gradient), .shape = param.gradient.shape()};
  return partition->gather(std::span(&own, 1), &source.backend()).front();
}

/// The last step in the file; 0 without a valid file. Checkpoints may have been removed, or be on unavailable
/// storage.
std::int64_t last_step_in(const std::string& metrics) {
  constexpr std::uint64_t enough_bytes = 1 << 14;
  report::RunLog log;
  std::error_code unseen;
  if (std::filesystem::symlink_status(metrics, unseen).type() == std::filesystem::file_type::regular)
    report::add_lines(log, lines_at_end(OpenFile(metrics, OpenFile::Mode::read), enough_bytes).text);
  return log.last_step;
}

}  // namespace

RunLogs::RunLogs(const checkpoint::RunDirectory& run, bool events, const report::ResumePoint& point,
                 bool writes, Say warn)
    : run_(run), warn_(std::move(warn)) {
  if (!writes) return;
  run.check_held();
  const std::int64_t last = point.step == 0 ? last_step_in(run.metrics_path()) : 0;
  if (last > 0)
    warn_(fmt::format(
        "{}: has lines up to step {}, but there is no checkpoint: the run begins again at step 0, "
        "and they are removed",
        run.metrics_path(), last));
  metrics_.emplace(run.metrics_path(), point.step, point.evaluated, true);
  if (events) events_.emplace(run.tensorboard_path(), point);
}

/// The reason is the part of an error after the file name. A full disk is one reason for all logs.
template <class Write>
bool RunLogs::attempt(const std::string& path, const Write& write) {
  if (!is_held(0.1)) return false;
  try {
    write();
    return true;
  } catch (const Error& error) {
    const std::string text = error.what();
    const std::string reason = text.starts_with(path) ? text.substr(path.size()) : text;
    if (logged_reasons_.insert(reason).second)
      warn_(text + "; the run continues, and what it logs until then is lost (said once)");
  }
  return false;
}

void RunLogs::append(const nlohmann::json& line) {
  if (!metrics_) return;
  const Timed timed(*this);
  attempt(run_.metrics_path(), [&] { metrics_->append(line); });
  if (events_) append(scalars_of(line));
}

void RunLogs::append(const report::Event& event) {
  if (!events_) return;
  const Timed timed(*this);
  attempt(events_->path(), [&] { events_->append(event); });
}

bool RunLogs::write_file(const std::string& path, const std::string& bytes) {
  if (!metrics_) return false;
  const Timed timed(*this);
  return attempt(path, [&] {
    make_directories(directory_of(path));
    write_text_atomically(path, bytes);
  });
}

void RunLogs::append_missing_image(std::int64_t step, const std::string& tag, const std::string& path) {
  constexpr std::uint64_t max_bytes = std::uint64_t{1} << 30;
  if (!events_) return;
  const Timed timed(*this);
  attempt(path, [&] {
    if (report::has_event(run_.tensorboard_path(), step, tag)) return;
    report::Event event(step);
    event.add_image(tag, read_text(path, max_bytes));
    events_->append(event);
  });
}

void RunLogs::warn_once(const std::string& text) {
  if (metrics_ && logged_reasons_.insert(text).second) warn_(text);
}

void RunLogs::append_event(std::int64_t step, const char* event, const std::string& note) {
  append({{"step", step}, {"time", utc_now()}, {"event", event}, {"note", note}});
}

void RunLogs::note_lost_lines(std::int64_t step) {
  if (!metrics_ || noted_lost_lines_) return;
  const std::string trouble = standard_error_trouble();
  if (trouble.empty()) return;
  noted_lost_lines_ = true;
  append({{"step", step},
          {"time", utc_now()},
          {"note", fmt::format("lines on standard error were lost: {}", trouble)}});
}

void RunLogs::sync() {
  if (metrics_) attempt(run_.metrics_path(), [&] { metrics_->sync(); });
  if (events_) attempt(events_->path(), [&] { events_->sync(); });
}

/// Checks the lock if the last check was this long ago. Other errors, such as too many open files, do not end
/// a run.
bool RunLogs::is_held(double after_s) {
  const double now_s = monotonic_s();
  if (!lost_.empty() || now_s - looked_s_ < after_s) return lost_.empty();
  looked_s_ = now_s;
  try {
    run_.check_held();
  } catch (const checkpoint::LostDirectory& error) {
    lost_ = error.what();
  } catch (const Error&) {
  }
  return lost_.empty();
}

void RunLogs::check_held() {
  if (metrics_ && !is_held(1)) throw checkpoint::LostDirectory("{}", lost_);
}

double RunLogs::take_cpu_ms() { return std::exchange(cpu_ms_, 0); }

RunLogs::Timed::Timed(RunLogs& logs) : logs_(logs) {
  if (logs_.timed_++ == 0) logs_.timed_from_ms_ = thread_cpu_ms();
}

RunLogs::Timed::~Timed() {
  if (--logs_.timed_ == 0) logs_.cpu_ms_ += thread_cpu_ms() - logs_.timed_from_ms_;
}

report::Event histograms_of(GradientSource& source, std::int64_t step, bool on_rank_0) {
  report::Event event(step);
  const std::span<Param* const> params = source.params();
  if (on_rank_0) {
    for (const Param* const param : params) {
      param->wait_ready();
      add_histogram(event, "parameters/" + param->name, param->value, 1, source.backend());
    }
  }
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (!params[i]->gradient) continue;
    const Tensor gradient = whole_gradient(source, i);
    if (on_rank_0)
      add_histogram(event, "gradients/" + params[i]->name, gradient, source.count(), source.backend());
  }
  return event;
}

void write_report(const std::string& run, const Log& log) {
  const std::string path = run + "/report.html";
  try {
    report::write_report({&run, 1}, path);
    log.info("report {}", path);
  } catch (const std::exception& error) {
    log.warning("report.write: no report of the run: {}", error.what());
  }
}

}  // namespace lockstep::train
