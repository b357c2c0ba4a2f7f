#include "train/run/outputs.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "base/resources.h"
#include "lockstep/tasks/built_in.h"

namespace lockstep::train {

Outputs::Outputs(const Config& config, Session& session, ddp::DataParallel& replicas)
    : config_(config),
      session_(session),
      replicas_(replicas),
      speaks_(session.world().rank() == 0),
      stragglers_(shards_of_ranks(replicas.shard_map())),
      interval_(speaks_ ? session.world().size() : 0) {
  if (config.log.trace.empty()) return;
  timeline_.emplace(config.log.trace, session.world());
  replicas.record(&*timeline_);
}

void Outputs::open(const checkpoint::RunDirectory& run, const report::ResumePoint& point) {
  logs_.emplace(run, config_.log.tensorboard, point, speaks_, [this](const std::string& line) {
    if (progress_) progress_->finish();
    session_.log().warning("{}", line);
  });
}

void Outputs::begin(std::int64_t step) {
  progress_.emplace(session_.log(), speaks_, step, config_.train.steps, config_.log.every,
                    config_.log.every_is_set ? 0.0 : 1.0);
  interval_.restart();
  logs_->take_cpu_ms();  // drops the time of the start
}

void Outputs::add_step(const StepRecord& step, std::int64_t evaluations_left) {
  const RunLogs::Timed timed(*logs_);
  const auto compute_ms_of = [this](int rank) { return replicas_.compute_ms_of(rank); };
  interval_.add(step.result, step.data_wait_ms, compute_ms_of);
  if (const std::string news = speaks_ ? stragglers_.note(compute_ms_of) : ""; !news.empty()) {
    note(fmt::format("step {}: {}", step.step, news));
    logs_->append_event(step.step, "slow_rank", news);
  }
  if (const std::string& why = replicas_.captured_steps().refused;
      !why.empty() && !std::exchange(noted_refused_capture_, true))
    note(fmt::format("train.cuda_graph = {}: steps are not captured as a graph: {}",
                     option::word(config_.ddp.graph), why));
  if (const std::string& why = replicas_.shards_at_once().refused;
      !why.empty() && !std::exchange(noted_refused_shards_, true))
    note(fmt::format("ddp.shards_at_once: passes compute one shard each: {}", why));
  logs_->note_lost_lines(step.step);
  progress_->step(step.step, step.result.mean_loss(),
                  static_cast<double>(config_.train.global_batch) * 1e3 / interval_.step_ms(),
                  evaluations_left, interval_.data_wait_ms(), tokens_per_second(step, interval_.step_ms()));
}

void Outputs::add_line(const StepRecord& step) {
  const RunLogs::Timed timed(*logs_);
  nlohmann::json line = interval_.to_json();
  const auto batch = static_cast<double>(config_.train.global_batch);
  line.update({{"step", step.step},
               {"loss", step.result.mean_loss()},
               {"lr", step.learning_rate},
               {"grad_norm", step.gradient_norm},
               {"samples", step.step * config_.train.global_batch},
               {"samples_per_second", batch * 1e3 / line["step_ms"].get<double>()},
               {"memory_mib", static_cast<double>(process_memory().peak_bytes) / (1 << 20)},
               {"log_ms", logs_->take_cpu_ms() / static_cast<double>(interval_.steps())},
               {"time", utc_now()}});
  if (const auto tokens = tokens_per_second(step, line["step_ms"].get<double>()))
    line["tokens_per_second"] = *tokens;
  if (replicas_.backend().device() != Device::cpu())
    line["gpu_memory_mib"] = static_cast<double>(replicas_.device_bytes()) / (1 << 20);
  logs_->append(line);
  interval_.restart_after_line();
}

/// The loss of a language model is a mean over tokens.
std::optional<double> Outputs::tokens_per_second(const StepRecord& step, double step_ms) const {
  if (!config_.task.options_of<tasks::Language>()) return std::nullopt;
  return static_cast<double>(step.result.count) * 1e3 / step_ms;
}

void Outputs::add_histograms(std::int64_t step) {
  const RunLogs::Timed timed(*logs_);
  logs_->append(histograms_of(replicas_, step, speaks_));
}

void Outputs::trace(const char* name, std::int64_t step, double start_s) {
  if (timeline_) timeline_->add(name, ddp::Timeline::compute, step, start_s, monotonic_s());
}

void Outputs::write_trace() {
  if (!timeline_) return;
  const std::int64_t dropped = timeline_->write();
  note(fmt::format("trace {}{}", config_.log.trace,
                   dropped == 0 ? "" : fmt::format("; {} later spans were dropped", dropped)));
}

}  // namespace lockstep::train
