#include "train/run/saves.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/progress.h"
#include "base/text.h"
#include "train/learned_data.h"
#include "train/run/resume.h"
#include "train/run/task_state.h"

namespace lockstep::train {

Saves::Saves(Config& config, checkpoint::RunDirectory& run, comm::HostGroup& world, const SavedParts& parts,
             checkpoint::StoreOptions options)
    : config_(config),
      run_(run),
      world_(world),
      parts_(parts),
      store_(run, world, std::move(options)),
      time_limit_(world.rank() == 0) {
  for (const Param* const param : parts_.replicas.params()) parameter_bytes_ += param->value.bytes();
}

checkpoint::StateDict Saves::contents() const {
  checkpoint::StateDict contents;
  checkpoint::add(contents, parts_.model);
  checkpoint::add(contents, parts_.optimizer);
  if (parts_.ema) checkpoint::add(contents, *parts_.ema);
  add(contents, parts_.task);
  return contents;
}

bool Saves::due_after(std::int64_t step) const {
  return config_.checkpoint.every > 0 && step % config_.checkpoint.every == 0;
}

void Saves::begin_at(std::int64_t step, bool saved, std::string changes) {
  if (saved) saved_ = step;
  changes_ = std::move(changes);
}

void Saves::save(std::int64_t step, Outputs& outputs, const std::map<std::string, double>& metrics) {
  if (has(step)) return;
  if (config_.ddp.check_every > 0) parts_.replicas.check_replicas();  // different replicas are never saved
  progress::enter(progress::Phase::save);
  if (store_.saving()) {
    if (!std::exchange(noted_wait_, true))
      outputs.note(fmt::format(
          "step {}: waits for the previous checkpoint, which is still being written (logged once); a longer "
          "checkpoint.every, or async = false, may be faster",
          step));
    store_.finish();
  }
  since_save_.restart();
  outputs.logs().sync();
  checkpoint::StateDict state = contents();
  add(state, parts_.data.train(), parts_.data.range());
  state.metrics = metrics;
  if (!changes_.empty()) state.provenance[changes_provenance] = changes_;
  store_.save_state_dict(step, std::move(state));
  if (!store_.saving()) time_limit_.note_save(since_save_.elapsed_ms() * 1e-3);
  saved_ = step;
  outputs.restart_interval();
}

void Saves::after_step(const ddp::Requests& of_any, double step_ms, Outputs& outputs) {
  const bool was_saving = store_.saving();
  advance(of_any);
  if (was_saving && !store_.saving()) time_limit_.note_save(since_save_.elapsed_ms() * 1e-3);
  time_limit_.note_step(step_ms * 1e-3);
  if (config_.checkpoint.every == CheckpointConfig::auto_every) choose_interval(step_ms, outputs);
}

/// The number of steps in ten minutes, by the time of the first ones.
void Saves::choose_interval(double step_ms, Outputs& outputs) {
  constexpr std::size_t steps_to_judge = 20;
  constexpr double interval_s = 600;
  step_ms_.push_back(step_ms);
  if (step_ms_.size() < steps_to_judge) return;
  std::int64_t every = std::max<std::int64_t>(1, std::llround(interval_s * 1e3 / median(step_ms_)));
  world_.broadcast(&every, sizeof every, 0);
  config_.checkpoint.every = every;
  const std::string text = to_text(config_);
  run_.write_config(text);
  store_.set_config(text);
  outputs.note(fmt::format("checkpoint.every = auto: a checkpoint every {}, which take about {:.0f} s",
                           pluralized(every, "step"), static_cast<double>(every) * median(step_ms_) * 1e-3));
}

void Saves::report(ddp::Requests& requests) const {
  const checkpoint::Store::Writer writer = store_.writer();
  requests.saving = writer.writing;
  requests.save_failed = writer.failed;
}

}  // namespace lockstep::train
