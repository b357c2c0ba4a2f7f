// The Trainer: a run from its first step to its last, and the work between two steps.
#include "train/run/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/progress.h"
#include "base/resources.h"
#include "base/text.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/data/loader.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/train/stop.h"
#include "train/components.h"
#include "train/device.h"
#include "train/run/data_listing.h"
#include "train/run/environment_fingerprint.h"
#include "train/run/evaluations.h"
#include "train/run/log_start.h"
#include "train/run/outputs.h"
#include "train/run/resume.h"
#include "train/run/saves.h"
#include "train/run/task_state.h"
#include "train/run/training_samples.h"
#include "train/watch/exit_record.h"

namespace lockstep::train {
namespace {

using progress::Phase;

/// Work after some steps of a run.
struct DueWork {
  std::function<bool(const StepRecord& step)> is_due;
  /// Does the work. Returns the stop request that all ranks obey before the next work. Collective.
  std::function<ddp::Requests(const StepRecord& step)> act;
  /// Parameters that are not finite end the run before it.
  bool uses_weights = true;
  /// Completes the work that an earlier start left undone after the last finished step. Optional.
  std::function<ddp::Requests()> make_up = {};
};

class Trainer {
 public:
  /// fork: null if the run is not a new fork.
  Trainer(Session& session, const Config& config, Inputs& inputs, checkpoint::RunDirectory& run,
          const RunOptions& options, const Fork* fork, StopRequests& requests, DType compute);
  ExitCode run();
  void log_dry_run(const MemoryNeed& need);
  /// After run(): a description of its end.
  const std::string& ending() const { return ending_; }
  std::int64_t steps_done() const { return done_; }

 private:
  void try_samples();
  void open_outputs();
  void append_start();
  void note_end(bool succeeded);
  std::vector<DueWork> due_work();
  ExitCode take_steps();
  StepRecord take_step();
  bool is_last(std::int64_t step) const { return step == config_.train.steps; }
  bool is_ended() const { return done_ >= config_.train.steps || patience_.is_over(); }
  bool has_line(std::int64_t step) const { return is_last(step) || step % config_.log.every == 0; }
  void save(const std::map<std::string, double>& metrics = {}) { saves_.save(done_, outputs_, metrics); }
  ddp::Requests save_as_due(const ddp::Requests& all_requests);
  void finish_requested_checkpoint();
  ddp::Requests make_pictures(bool only_missing);
  ddp::Requests evaluate();
  void count_evaluation(std::optional<double> value);
  ddp::Requests requests_of_this_rank() const;
  EvaluationWatch watch(ddp::Requests& stopped, bool shows);
  bool act_within_evaluation(const ddp::Requests& all_requests, ddp::Requests& stopped);
  std::optional<ExitCode> stop_on_request(const ddp::Requests& all_requests);

  Session& session_;
  comm::HostGroup& world_;
  Config config_;
  const Fork* fork_;  // null: this start begins no fork
  checkpoint::RunDirectory& run_;
  DataSets& data_;
  Model& model_;
  Task& task_;
  ddp::DataParallel replicas_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::Ema> ema_;
  WeightsInUse weights_;
  TrainingSamples samples_;
  Evaluations evaluations_;
  Patience patience_;
  data::Loader loader_;
  optim::Schedule schedule_;
  TaskNumbers task_numbers_;
  StopRequests& requests_;
  Outputs outputs_;
  Saves saves_;
  Beginning beginning_;
  std::int64_t done_ = 0;           // steps
  bool missed_evaluation_ = false;  // the evaluation of the checkpoint was due and did not end
  std::string ending_;
};

Trainer::Trainer(Session& session, const Config& config, Inputs& inputs, checkpoint::RunDirectory& run,
                 const RunOptions& options, const Fork* fork, StopRequests& requests, DType compute)
    : session_(session),
      world_(session.world()),
      config_(config),
      fork_(fork),
      run_(run),
      data_(*inputs.data),
      model_(*inputs.model),
      task_(*inputs.task),
      replicas_(model_, session.transport(), session.backend(), config.ddp),
      optimizer_(config.optimizer.make(replicas_)),
      ema_(build_ema(config, model_, session.backend(), replicas_.partition())),
      weights_(ema_.get()),
      samples_(config, {world_, session.backend(), model_, task_, weights_, data_, compute}, run.path()),
      evaluations_({.evaluator = {.model = model_,
                                  .task = task_,
                                  .tape = replicas_.tape(),
                                  .world = world_,
                                  .compute = compute},
                    .weights = weights_,
                    .dataset = data_.eval(),
                    .task_name = config.task.name(),
                    .more_metrics = samples_.metrics()},
                   config.train.eval_every, config.train.steps),
      patience_(evaluations_.patience(config.train.patience, config.checkpoint.store.keep_best)),
      loader_(data_.train(), loader_options(config, data_, session), world_),
      schedule_(config.optimizer.schedule),
      task_numbers_(task_, world_, replicas_.shard_map(), config.train.global_batch),
      requests_(requests),
      outputs_(config_, session, replicas_),
      saves_(config_, run, world_, {model_, *optimizer_, ema_.get(), task_, data_, replicas_},
             store_options(config, data_, session.backend(), compute,
                           evaluations_.better(config.checkpoint.store.keep_best))) {
  evaluations_.check_keep_best(config_.checkpoint.store.keep_best);
  if (ema_) optimizer_->attach(*ema_);
  if (const std::string own = replaced_names(config_, data_.format()); !own.empty())
    saves_.store().note({{"own", own}});
  beginning_ =
      begin({config_, data_, model_, ema_.get(), saves_.store(), saves_.contents()}, options, fork, session);
  done_ = beginning_.step;
  saves_.begin_at(done_, beginning_.resumes, beginning_.changes);
  patience_.restore(beginning_.patience);
  try_samples();
}

/// Errors in the held-out data, or in a program's model, loss or metrics, must end the start, not the run at
/// its first evaluation.
void Trainer::try_samples() {
  if (is_last(done_)) return;
  const bool must_learn = replicas_.options().unused == ddp::Unused::error;
  comm::run_on_all(world_, [&] {
    const std::int64_t tried = evaluations_.try_on(loader_.at(done_).shards.front(), must_learn);
    check_batch_norms(model_, tried, config_, replicas_, done_ == 0 || fork_, session_.log());
  });
  warn_of_held_out(data_, session_);
}

void Trainer::log_dry_run(const MemoryNeed& need) {
  log_start(session_, config_, model_, data_, replicas_, *optimizer_, ema_.get());
  session_.log().info("memory of a rank, at least: {}", need.to_text());
  const std::string how = fork_       ? fmt::format("fork {} into {}", fork_->index.path, run_.path())
                          : done_ > 0 ? fmt::format("resume {}", run_.path())
                                      : fmt::format("begin {}", run_.path());
  session_.log().info("dry run: nothing was written; a start would {} after step {}, and take {}", how, done_,
                      pluralized(std::max<std::int64_t>(0, config_.train.steps - done_), "step"));
}

/// The work after a step, in this order. New work is one more entry.
std::vector<DueWork> Trainer::due_work() {
  const ddp::Requests none;
  DueWork line{.is_due = [this](const StepRecord& step) { return has_line(step.step); },
               .act = [this, none](const StepRecord& step) { return outputs_.add_line(step), none; },
               .uses_weights = false};
  DueWork histograms{
      .is_due =
          [this](const StepRecord& step) {
            const std::int64_t every = config_.log.tensorboard ? config_.log.histograms_every : 0;
            return every > 0 && step.step % every == 0;
          },
      .act = [this, none](const StepRecord& step) { return outputs_.add_histograms(step.step), none; },
      .uses_weights = false};
  DueWork checkpoint{.is_due =
                         [this](const StepRecord& step) {
                           return saves_.due_after(step.step) || is_last(step.step) ||
                                  step.result.requests.any();
                         },
                     .act = [this](const StepRecord& step) { return save_as_due(step.result.requests); }};
  DueWork pictures{.is_due = [this](const StepRecord& step) { return samples_.due_after(step.step); },
                   .act = [this](const StepRecord&) { return make_pictures(false); },
                   .make_up = [this] { return make_pictures(true); }};
  DueWork evaluation{.is_due = [this](const StepRecord& step) { return evaluations_.due_after(step.step); },
                     .act = [this](const StepRecord&) { return evaluate(); },
                     .make_up = [this, none] { return missed_evaluation_ ? evaluate() : none; }};
  return {std::move(line), std::move(histograms), std::move(checkpoint), std::move(pictures),
          std::move(evaluation)};
}

ExitCode Trainer::run() {
  log_start(session_, config_, model_, data_, replicas_, *optimizer_, ema_.get());
  open_outputs();
  if (fork_) {  // from here on the run does not need the file of the fork
    save();
    saves_.finish();
  }
  run_.write_config(to_text(config_));  // last: a failed start leaves no run behind
  outputs_.begin(done_);
  try {
    return take_steps();
  } catch (const std::exception& error) {
    outputs_.add_last_steps();
    note_end(false);
    const auto* const training_error = dynamic_cast<const TrainingError*>(&error);
    if (!training_error) throw;
    // The same on every rank, and earlier steps are good: finishes a pending save.
    try {
      saves_.finish();
    } catch (const Error& save_error) {  // the training error is more important
      if (world_.rank() == 0) session_.log().warning("{}", save_error.what());
    }
    blame_data(*training_error, loader_, data_, done_, session_);
    throw;
  }
}

void Trainer::open_outputs() {
  missed_evaluation_ = evaluations_.due_after(done_) &&
                       !saves_.store().knows_metric(done_, evaluations_.metrics().front().name);
  // The checkpoint may be older than the evaluation of its step.
  if (patience_.counts() && evaluations_.due_after(done_) && !missed_evaluation_)
    count_evaluation(saves_.store().find_metric(done_, patience_.metric()));
  const report::ResumePoint point{.step = done_, .evaluated = !missed_evaluation_};
  comm::run_on_all(world_, [&] {
    outputs_.open(run_, point);
    append_start();
  });
}

/// Records each start: a line of metrics, and the configuration as text.
void Trainer::append_start() {
  nlohmann::json line = line_of_start(world_, done_, beginning_.changed, fork_);
  line["higher_is_better"] = nlohmann::json::array();
  for (const Metric& metric : evaluations_.metrics())
    if (metric.better == Better::higher) line["higher_is_better"].push_back(metric.name);
  line["settings"] = nlohmann::json::object();
  for (const auto& [key, value] : config_.user_settings) line["settings"][key] = value;
  outputs_.logs().append(line);
  report::Event event(done_);
  event.add_text("configuration", report::preformatted(to_text(config_)));
  event.add_session_start(config_.user_settings);
  outputs_.logs().append(event);
}

/// For the comparison of runs in TensorBoard.
void Trainer::note_end(bool succeeded) {
  report::Event event(done_);
  event.add_session_end(succeeded);
  outputs_.logs().append(event);
}

ExitCode Trainer::take_steps() {
  const std::vector<DueWork> works = due_work();
  for (const DueWork& work : works)
    if (work.make_up)
      if (const std::optional<ExitCode> code = stop_on_request(work.make_up())) return *code;
  while (!is_ended()) {
    const StepRecord step = take_step();
    bool are_finite = false;  // the weights
    for (const DueWork& work : works) {
      if (!work.is_due(step)) continue;
      if (work.uses_weights && !are_finite) {
        comm::run_on_all(world_, [&] { check_finite(model_.state(), session_.backend(), done_); });
        are_finite = true;
      }
      if (const std::optional<ExitCode> code = stop_on_request(work.act(step))) return *code;
    }
  }
  progress::enter(Phase::save);
  saves_.finish();
  requests_.clear(requests_.pending());  // too late: the run has ended
  outputs_.write_trace();
  ending_ = done_ < config_.train.steps ? fmt::format("ended after step {}: {}", done_, patience_.why())
                                        : fmt::format("done: {}", pluralized(done_, "step"));
  note_end(true);
  if (config_.report.write && world_.rank() == 0) write_report(run_.path(), session_.log());
  const bool on_cpu = session_.backend().device() == Device::cpu();
  outputs_.note(fmt::format(
      "{}; checkpoint {}; rank 0 took at most {} MiB of {}", ending_, saves_.store().current_path(),
      process_memory().peak_bytes >> 20,
      on_cpu ? "memory"
             : fmt::format("host memory, and has {} MiB of its GPU's", replicas_.device_bytes() >> 20)));
  return ExitCode::done;
}

/// The shards of a step, read on demand: an error of reading then becomes the step's error on every rank, and
/// so does the loss of the run's directory to a later start.
struct StepShards {
  data::Loader& loader;
  RunLogs& logs;
  std::int64_t step;
  double& wait_ms;
  std::span<const Batch> shards = {};

  std::span<const Batch>::iterator begin() {
    const Stopwatch watch;
    logs.check_held();
    shards = loader.at(step).shards;
    wait_ms = watch.elapsed_ms();
    return shards.begin();
  }
  auto end() const { return shards.end(); }
};

StepRecord Trainer::take_step() {
  const Stopwatch watch;
  progress::at_step(done_ + 1, outputs_.step_ms());
  replicas_.request(requests_of_this_rank());
  const auto loss_of = [&](Tape& tape, const Batch& shard, const ddp::MicroBatch& micro_batch) {
    return task_(tape, model_, micro_batch.rows(shard));
  };
  StepRecord step{.step = done_ + 1, .learning_rate = schedule_.at(done_, config_.train.steps)};
  const optim::StepOptions update{
      .lr = step.learning_rate, .clip = config_.optimizer.clip, .measure_norm = has_line(step.step)};
  step.result = replicas_.step(StepShards{loader_, outputs_.logs(), done_, step.data_wait_ms}, loss_of,
                               optimizer_->measurement_for(update));
  const double start_s = monotonic_s();
  progress::enter(Phase::optimizer);
  step.gradient_norm = optimizer_->step(update).gradient_norm;
  task_numbers_.agree();
  outputs_.trace("optimizer", done_, start_s);
  ++done_;
  saves_.after_step(step.result.requests, watch.elapsed_ms(), outputs_);
  outputs_.add_step(step, evaluations_.left_after(done_));
  return step;
}

ddp::Requests Trainer::requests_of_this_rank() const {
  ddp::Requests own_requests = requests_.pending();
  own_requests.stop_preempted = own_requests.stop_preempted || saves_.limit_is_near();
  saves_.report(own_requests);
  return own_requests;
}

/// Before the evaluation, which may take hours. The last step ends the run in any case.
ddp::Requests Trainer::save_as_due(const ddp::Requests& all_requests) {
  save();
  if (all_requests.checkpoint) finish_requested_checkpoint();
  if (is_last(done_)) return {};
  return {.stop_preempted = all_requests.stop_preempted, .stop_user = all_requests.stop_user};
}

void Trainer::finish_requested_checkpoint() {
  saves_.finish();
  outputs_.note(fmt::format("checkpoint {}, as asked", saves_.store().current_path()));
  requests_.clear({.checkpoint = true});
}

/// The pictures that are due. A stop request ends the work and is returned: a resume makes the missing ones.
ddp::Requests Trainer::make_pictures(bool only_missing) {
  ddp::Requests stopped;
  const bool all = samples_.after_step(done_, outputs_.logs(), watch(stopped, false), only_missing);
  if (samples_.due_after(done_)) outputs_.restart_interval();
  return all ? ddp::Requests{} : stopped;
}

/// Evaluates, and logs and records the metrics. A stop request ends it early, without metrics, and is
/// returned: a resume repeats the evaluation. A requested checkpoint is saved between two batches.
ddp::Requests Trainer::evaluate() {
  progress::enter(Phase::evaluation);
  nlohmann::json line = {{"step", done_}, {"time", utc_now()}};
  ddp::Requests stopped;
  outputs_.evaluation(done_, 0, evaluations_.left_after(done_));
  const std::optional<Evaluations::Result> found = evaluations_.run(watch(stopped, true));
  outputs_.evaluation(done_, 1, evaluations_.left_after(done_));
  if (!found) return stopped;
  line.update(found->metrics);
  outputs_.logs().append(line);
  if (patience_.counts()) count_evaluation(found->metrics.at(patience_.metric()));
  if (patience_.is_over()) outputs_.logs().append_event(done_, "ended", patience_.why());
  outputs_.logs().sync();  // the checkpoint's record of these metrics implies that the line exists
  if (saves_.has(done_))
    saves_.store().note_metrics(done_, found->metrics);
  else if (saves_.store().would_be_best(done_, found->metrics) || patience_.is_over())
    save(found->metrics);
  outputs_.note_evaluation(patience_.is_over() ? config_.train.steps : done_,
                           fmt::format("step {}  {}", done_, found->text));
  outputs_.restart_interval();
  return {};
}

/// Later checkpoints have the count. The value is the same on every rank; none is no better one.
void Trainer::count_evaluation(std::optional<double> value) {
  patience_.add(done_, value.value_or(std::numeric_limits<double>::quiet_NaN()));
  saves_.store().note({{patience_provenance, patience_.to_text()}});
}

/// The watch of an evaluation or of sampling. `stopped` gets the stop request that ends it.
EvaluationWatch Trainer::watch(ddp::Requests& stopped, bool shows) {
  return {.requests = [this] { return requests_of_this_rank().to_bits(); },
          .act =
              [this, &stopped, shows](std::uint64_t of_any, double fraction) {
                if (shows)
                  outputs_.evaluation(done_, std::min(fraction, 0.9999), evaluations_.left_after(done_));
                return act_within_evaluation(ddp::Requests::from_bits(of_any), stopped);
              }};
}

/// Between two batches, or evaluations of the network. False ends the evaluation. Collective.
bool Trainer::act_within_evaluation(const ddp::Requests& all_requests, ddp::Requests& stopped) {
  saves_.advance(all_requests);
  if (all_requests.checkpoint) {
    weights_.with_own([this] { save(), finish_requested_checkpoint(); });
    progress::enter(Phase::evaluation);
  }
  stopped = {.stop_preempted = all_requests.stop_preempted, .stop_user = all_requests.stop_user};
  return !stopped.any();
}

/// Saves and ends the run if a stop was requested.
std::optional<ExitCode> Trainer::stop_on_request(const ddp::Requests& all_requests) {
  if (!all_requests.stop_preempted && !all_requests.stop_user) return std::nullopt;
  const bool preempted = all_requests.stop_preempted, late = saves_.limit_is_near();
  const std::string why = late ? "ahead of the time limit" : preempted ? "by a signal" : "as asked";
  outputs_.logs().append_event(done_, preempted ? "preempted" : "stopped", why);
  save();
  saves_.finish();  // a request is obeyed when the checkpoint is on storage
  requests_.clear({.stop_preempted = all_requests.stop_preempted, .stop_user = all_requests.stop_user});
  outputs_.write_trace();
  ending_ = fmt::format("{} after step {}", preempted && !late ? "preempted" : "stopped " + why, done_);
  outputs_.note(fmt::format("{}; checkpoint {}", ending_, saves_.store().current_path()));
  return exit_code(all_requests);
}

/// The start up to the first step; then the run, or in a dry run `show` with the resolved configuration.
ExitCode start(Session& session, Config& config, const RunOptions& options,
               const std::function<void(const Config&)>& show) {
  const bool dry = static_cast<bool>(show);
  comm::HostGroup& world = session.world();
  // A stop request during the start is obeyed after a step.
  StopRequests requests(options.directory, world.rank() == 0);
  if (!config.note.empty()) session.log().info("note: {}", config.note);
  session.watch(config.fault.hang_timeout_s, config.fault.signal_report);
  check_same_environment(world, config, options);
  session.use_device(config.train.device, {.threads = std::max(1, config.train.threads),
                                           .reproducible = config.train.reproducible});
  const DType compute = choose_session_precision(session, config.train.precision, config.train.bf16_fallback);
  config.ddp.compute = compute;
  Inputs inputs = open_inputs(config, session);
  checkpoint::RunDirectory run = dry ? checkpoint::RunDirectory::read_only(options.directory, world)
                                     : checkpoint::RunDirectory(options.directory, world);
  return with_exit_record(run, world.rank() == 0 && !dry, [&](bool& begun) -> Ending {
    const std::optional<Fork> fork = open_fork(config, run, options, world);
    const Fork* const forked = fork ? &*fork : nullptr;
    resolve(config, run, options, forked, inputs.data->train().size(), world);
    comm::run_on_all(world, [&] {
      for (const data::Dataset* const data : {&inputs.data->train(), inputs.data->eval()})
        if (data) check_data(*inputs.model, *inputs.task, *data);
      metrics_of(*inputs.task);  // throws if they are wrong
    });
    resolve_threads(config, session);
    check_same_updates(config, session.backend(), world);
    inputs.model->to(session.backend());
    Trainer trainer(session, config, inputs, run, options, forked, requests, compute);
    if (dry) {
      show(config);
      trainer.log_dry_run(inputs.need);
      return {};
    }
    comm::run_on_all(world, [&] {
      if (world.rank() == 0) record_listing(run.path(), inputs.data->listing(), session.log());
    });
    begun = true;
    try {
      const ExitCode code = trainer.run();
      return {.code = code, .step = trainer.steps_done(), .why = trainer.ending()};
    } catch (const std::exception&) {
      if (config.report.write && world.rank() == 0 && run.is_held())
        session.after_failure = [path = run.path(), log = session.log()] { write_report(path, log); };
      throw;
    }
  });
}

}  // namespace

ExitCode train(Session& session, Config config, const RunOptions& options) {
  return start(session, config, options, nullptr);
}

void dry_run(Session& session, Config config, const RunOptions& options,
             const std::function<void(const Config&)>& show) {
  start(session, config, options, show);
}

}  // namespace lockstep::train
