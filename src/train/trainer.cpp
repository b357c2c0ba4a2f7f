// The Trainer. Steps, evaluations, saves and stops change the same state in an order that matters, so that
// they are in one file.
#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.h"
#include "base/progress.h"
#include "base/resources.h"
#include "base/streams.h"
#include "base/text.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/data/loader.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/train/stop.h"
#include "lockstep/train/time_limit.h"
#include "train/components.h"
#include "train/device.h"
#include "train/environment_fingerprint.h"
#include "train/evaluations.h"
#include "train/exit_record.h"
#include "train/interval.h"
#include "train/log_start.h"
#include "train/resume.h"
#include "train/run_logs.h"
#include "train/stragglers.h"
#include "train/task_state.h"
#include "train/training_samples.h"

namespace lockstep::train {
namespace {

using progress::Phase;

/// Provenance: the changes that resumes have made to the configuration.
constexpr const char* changes_provenance = "config_changes";

class Trainer {
 public:
  /// fork: null if the run is not a new fork.
  Trainer(Session& session, const Config& config, Inputs& inputs, checkpoint::RunDirectory& run,
          const RunOptions& options, const Fork* fork, StopRequests& requests, DType compute);
  ExitCode run();
  void log_dry_run(const MemoryNeed& need);
  /// After run(): how it ended.
  const std::string& ending() const { return ending_; }
  std::int64_t steps_done() const { return done_; }

 private:
  void start(const RunOptions& options);
  void try_samples();
  void start_as_fork();
  void continue_from(const checkpoint::FileIndex& index);
  ExitCode take_steps();
  ddp::StepResult take_step(bool measure_norm);
  void report_step(const ddp::StepResult& result, bool log);
  void log_step(const ddp::StepResult& result);
  void log_refused_capture();
  void finish_requested_checkpoint();
  ddp::Requests evaluate();
  ddp::Requests requests_of_this_rank() const;
  ddp::Requests make_pictures(bool only_missing = false);
  EvaluationWatch watch(ddp::Requests& stopped, bool shows);
  bool act_within_evaluation(const ddp::Requests& asked, ddp::Requests& stopped);
  std::optional<ExitCode> stop_if_asked(const ddp::Requests& asked);
  checkpoint::StateDict contents();
  void save(const std::map<std::string, double>& metrics = {});
  void append_start();
  void write_timeline();
  bool due(std::int64_t every) const { return every > 0 && done_ % every == 0; }

  Session& session_;
  comm::HostGroup& world_;
  Config config_;
  const Fork* fork_;                // null: this start begins no fork
  std::vector<KeyChange> changed_;  // by this start, since the checkpoint that it resumes or forks from
  std::string changes_;             // by this and earlier starts, as provenance stores them
  checkpoint::RunDirectory& run_;
  DataSets& data_;
  Model& model_;
  Task& task_;
  ddp::DataParallel replicas_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::Ema> ema_;
  TrainingSamples samples_;
  Evaluations evaluations_;
  data::Loader loader_;
  optim::Schedule schedule_;
  checkpoint::Store store_;
  CheckpointInterval checkpoint_interval_;
  TaskNumbers task_numbers_;
  std::int64_t done_ = 0;     // steps
  std::int64_t saved_ = -1;   // step of the newest checkpoint
  bool logged_wait_ = false;  // for an asynchronous save, when the next was due
  double learning_rate_ = 0;
  optim::UpdateResult applied_;
  double data_wait_ms_ = 0;  // of the last step
  std::optional<RunLogs> logs_;
  std::optional<Progress> progress_;
  std::optional<ddp::Timeline> timeline_;
  StopRequests& requests_;
  TimeLimit time_limit_;
  std::int64_t parameter_bytes_ = 0;  // of the whole model
  Stragglers stragglers_;
  Interval interval_;
  Stopwatch since_save_;  // since the last save began
  std::string ending_;
  bool logged_refused_capture_ = false;
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
      samples_(config, {world_, session.backend(), model_, task_, ema_.get(), data_, compute}, run.path()),
      evaluations_({.evaluator = {.model = model_,
                                  .task = task_,
                                  .tape = replicas_.tape(),
                                  .world = world_,
                                  .compute = compute},
                    .ema = ema_.get(),
                    .dataset = data_.eval(),
                    .task_name = config.task.name(),
                    .measured = samples_.measured()},
                   config.train.eval_every, config.train.steps),
      loader_(data_.train(), loader_options(config, data_.train(), session.backend()), world_),
      schedule_(config.optimizer.schedule),
      store_(run, world_,
             store_options(config, data_, session.backend(), compute,
                           evaluations_.better(config.checkpoint.store.keep_best))),
      checkpoint_interval_(config_, run_, store_, world_),
      task_numbers_(task_, world_, replicas_.shard_map(), config.train.global_batch),
      requests_(requests),
      time_limit_(world_.rank() == 0),
      stragglers_(shards_of_ranks(replicas_.shard_map())),
      interval_(world_.rank() == 0 ? world_.size() : 0) {
  evaluations_.check_keep_best(config_.checkpoint.store.keep_best);
  if (ema_) optimizer_->attach(*ema_);
  if (!config_.log.trace.empty()) {
    timeline_.emplace(config_.log.trace, world_);
    replicas_.record(&*timeline_);
  }
  for (const Param* const param : replicas_.params()) parameter_bytes_ += param->value.bytes();
  if (const std::string own = replaced_names(config_, data_.format()); !own.empty())
    store_.note({{"own", own}});
  start(options);
  try_samples();
}

/// Weights and position come from the run's newest checkpoint, from a file, or are new.
void Trainer::start(const RunOptions& options) {
  if (options.resume == "never" && store_.newest()) {
    throw UsageError("{}: holds checkpoints already, and --resume never was given; choose another --run",
                     run_.path());
  }
  checkpoint::StateDict contents = this->contents();
  done_ = store_.resume_state_dict(contents);
  if (done_ > 0) {
    saved_ = done_;
    const checkpoint::FileIndex index = checkpoint::read_index(store_.current_path(), world_);
    // Compares with the checkpoint, not config.ini: an earlier start may have changed that and saved nothing.
    if (!index.config.empty())
      changed_ = allowed_changes(
          parse_stored_config(index.config, store_.current_path() + " /config", *config_.registries),
          config_);
    std::erase_if(changed_,
                  [](const KeyChange& change) { return change.before == "auto"; });  // resolved since
    continue_from(index);
    session_.log().info("going on after step {} ({})", done_, store_.current_path());
  } else if (fork_) {
    start_as_fork();
  } else {
    data_.measure(world_);
    if (config_.train.init.empty()) return;
    store_.note(load_initial_weights(config_, model_, ema_.get(), session_));
  }
}

/// What the held-out data, or a program's model, loss or metrics have wrong ends the start, not a run after
/// its first evaluation.
void Trainer::try_samples() {
  if (done_ == config_.train.steps) return;
  const bool must_learn = replicas_.options().unused == ddp::Unused::error;
  comm::run_on_all(world_, [&] {
    const std::int64_t tried = evaluations_.try_on(loader_.at(done_).shards.front(), must_learn);
    check_batch_norms(model_, tried, config_, replicas_, done_ == 0 || fork_, session_.log());
  });
  warn_of_held_out(data_, session_);
}

/// After the state of a checkpoint has been loaded: its data and its history.
void Trainer::continue_from(const checkpoint::FileIndex& index) {
  const checkpoint::Provenance& provenance = index.provenance;
  comm::run_on_all(world_, [&] { data_.use(learned_from(index)); });
  log_warnings(data_, session_);
  if (world_.rank() == 0) warn_of_other_data(provenance, data_.train().size(), session_.log());
  for (const char* const fact : {forked_from_provenance, forked_step_provenance})
    if (const auto found = provenance.find(fact); found != provenance.end()) store_.note({*found});
  if (const auto before = provenance.find(changes_provenance); before != provenance.end())
    changes_ = before->second;
  for (const KeyChange& change : changed_)
    changes_ += fmt::format("{}step {}: {}", changes_.empty() ? "" : "; ", done_, change.to_text());
}

/// Fields that the checkpoint does not normalise are as measured in the new run's data; a task whose state
/// has other shapes there begins anew.
void Trainer::start_as_fork() {
  const checkpoint::FileIndex& file = fork_->index;
  const std::optional<Config>& stored = fork_->config;
  checkpoint::StateDict contents = this->contents();
  LearnedFrom from;
  comm::run_on_all(world_, [&] { from = learned_from(file); });
  if (std::ranges::any_of(config_.data.normalize,
                          [&](const std::string& f) { return !from.normalization(f); }))
    data_.measure(world_);
  if (const std::string other = drop_task_of_other_shape(contents, file); !other.empty())
    session_.log().info("fork: {}", other);
  store_.fork_state_dict(file, contents);
  done_ = file.position.step;
  if (stored) changed_ = all_changes(*stored, config_);
  continue_from(file);
  store_.note({{forked_from_provenance, file.path}, {forked_step_provenance, std::to_string(done_)}});
  for (const KeyChange& change : changed_) session_.log().info("fork: {}", change.to_text());
  if (!stored) session_.log().info("fork: {} holds no configuration to compare with", file.path);
  session_.log().info("a fork of {}, after step {}", file.path, done_);
}

ddp::StepResult Trainer::take_step(bool measure_norm) {
  const auto loss_of = [&](Tape& tape, const Batch& shard, const ddp::MicroBatch& micro_batch) {
    return task_(tape, model_, micro_batch.rows(shard));
  };
  learning_rate_ = schedule_.at(done_, config_.train.steps);
  const optim::StepOptions update{
      .lr = learning_rate_, .clip = config_.optimizer.clip, .measure_norm = measure_norm};
  const ddp::StepResult result = replicas_.step(StepShards{loader_, *logs_, done_, data_wait_ms_}, loss_of,
                                                optimizer_->measurement_for(update));
  const double start_s = monotonic_s();
  progress::enter(Phase::optimizer);
  applied_ = optimizer_->step(update);
  task_numbers_.agree();
  if (timeline_) timeline_->add("optimizer", ddp::Timeline::compute, done_, start_s, monotonic_s());
  ++done_;
  return result;
}

void Trainer::report_step(const ddp::StepResult& result, bool log) {
  const RunLogs::Timed timed(*logs_);
  progress_->step(done_, result.mean_loss(),
                  static_cast<double>(config_.train.global_batch) * 1e3 / interval_.step_ms(),
                  evaluations_.left_after(done_), interval_.data_wait_ms());
  if (log) log_step(result);
  if (config_.log.tensorboard && due(config_.log.histograms_every))
    logs_->append(histograms_of(replicas_, done_, world_.rank() == 0));
}

void Trainer::log_step(const ddp::StepResult& result) {
  nlohmann::json line = interval_.to_json();
  const auto batch = static_cast<double>(config_.train.global_batch);
  line.update({{"step", done_},
               {"loss", result.mean_loss()},
               {"lr", learning_rate_},
               {"grad_norm", applied_.gradient_norm},
               {"samples", done_ * config_.train.global_batch},
               {"samples_per_second", batch * 1e3 / line["step_ms"].get<double>()},
               {"memory_mib", static_cast<double>(process_memory().peak_bytes) / (1 << 20)},
               {"log_ms", logs_->take_cpu_ms() / static_cast<double>(interval_.steps())},
               {"time", utc_now()}});
  logs_->append(line);
  interval_.restart_after_line();
}

void Trainer::log_refused_capture() {
  const std::string& why = replicas_.captured_steps().refused;
  if (why.empty() || std::exchange(logged_refused_capture_, true)) return;
  progress_->note(fmt::format("train.cuda_graph = {}: steps are not captured as a graph: {}",
                              option::word(config_.ddp.graph), why));
}

ddp::Requests Trainer::requests_of_this_rank() const {
  ddp::Requests asked = requests_.pending();
  asked.stop_preempted = asked.stop_preempted || time_limit_.is_up(parameter_bytes_);
  const checkpoint::Store::Writer writer = store_.writer();
  asked.saving = writer.writing;
  asked.save_failed = writer.failed;
  return asked;
}

/// Evaluates, and logs and records the metrics. A stop request ends it early, without metrics, and is
/// returned: a resume repeats the evaluation. A requested checkpoint is saved between two batches.
ddp::Requests Trainer::evaluate() {
  progress::enter(Phase::evaluation);
  nlohmann::json line = {{"step", done_}, {"time", utc_now()}};
  ddp::Requests stopped;
  progress_->evaluation(done_, 0, evaluations_.left_after(done_));
  const std::optional<Evaluations::Result> found = evaluations_.run(watch(stopped, true));
  progress_->evaluation(done_, 1, evaluations_.left_after(done_));
  if (!found) return stopped;
  line.update(found->metrics);
  logs_->append(line);
  logs_->sync();  // the checkpoint's record of these metrics says that the line exists
  if (saved_ == done_)
    store_.note_metrics(done_, found->metrics);
  else if (store_.would_be_best(done_, found->metrics))
    save(found->metrics);
  progress_->note(fmt::format("step {}  {}", done_, found->text));
  interval_.restart();
  return {};
}

/// The pictures that are due. A stop request ends their making and is returned: a resume makes those missing.
ddp::Requests Trainer::make_pictures(bool only_missing) {
  ddp::Requests stopped;
  const bool all = samples_.after_step(done_, *logs_, watch(stopped, false), only_missing);
  if (samples_.due_after(done_)) interval_.restart();
  return all ? ddp::Requests{} : stopped;
}

/// What is done while an evaluation or sampling goes on. `stopped` gets the stop request that ends it.
EvaluationWatch Trainer::watch(ddp::Requests& stopped, bool shows) {
  return {.requests = [this] { return requests_of_this_rank().to_bits(); },
          .act =
              [this, &stopped, shows](std::uint64_t of_any, double fraction) {
                if (shows)
                  progress_->evaluation(done_, std::min(fraction, 0.9999), evaluations_.left_after(done_));
                return act_within_evaluation(ddp::Requests::from_bits(of_any), stopped);
              }};
}

/// Between two batches, or evaluations of the network. False ends the evaluation. Collective.
bool Trainer::act_within_evaluation(const ddp::Requests& asked, ddp::Requests& stopped) {
  store_.advance({.writing = asked.saving, .failed = asked.save_failed});
  if (asked.checkpoint) {
    samples_.with_own_weights(
        [this] { evaluations_.with_own_weights([this] { save(), finish_requested_checkpoint(); }); });
    progress::enter(Phase::evaluation);
  }
  stopped = {.stop_preempted = asked.stop_preempted, .stop_user = asked.stop_user};
  return !stopped.any();
}

void Trainer::finish_requested_checkpoint() {
  store_.finish();
  progress_->note(fmt::format("checkpoint {}, as asked", store_.current_path()));
  requests_.clear({.checkpoint = true});
}

checkpoint::StateDict Trainer::contents() {
  checkpoint::StateDict contents;
  checkpoint::add(contents, model_);
  checkpoint::add(contents, *optimizer_);
  if (ema_) checkpoint::add(contents, *ema_);
  add(contents, task_);
  return contents;
}

/// metrics: of the evaluation of these weights, where it came first.
void Trainer::save(const std::map<std::string, double>& metrics) {
  if (saved_ == done_) return;
  if (config_.ddp.check_every > 0) replicas_.check_replicas();  // replicas that differ are not saved
  progress::enter(Phase::save);
  if (store_.saving()) {
    if (!std::exchange(logged_wait_, true))
      progress_->note(fmt::format(
          "step {}: waits for the previous checkpoint, which is still being written (logged once); a longer "
          "checkpoint.every, or async = false, may be faster",
          done_));
    store_.finish();
  }
  since_save_.restart();
  logs_->sync();
  checkpoint::StateDict contents = this->contents();
  add(contents, data_.train(), data_.range());
  contents.metrics = metrics;
  if (!changes_.empty()) contents.provenance[changes_provenance] = changes_;
  store_.save_state_dict(done_, std::move(contents));
  if (!store_.saving()) time_limit_.note_save(since_save_.elapsed_ms() * 1e-3);
  saved_ = done_;
  interval_.restart();
}

void Trainer::write_timeline() {
  if (!timeline_) return;
  const std::int64_t dropped = timeline_->write();
  progress_->note(fmt::format("trace {}{}", config_.log.trace,
                              dropped == 0 ? "" : fmt::format("; {} later spans were not kept", dropped)));
}

/// Of each start: a line of metrics, and the configuration as text.
void Trainer::append_start() {
  logs_->append(line_of_start(world_, done_, changed_, fork_));
  report::Event event(done_);
  event.add_text("configuration", report::preformatted(to_text(config_)));
  logs_->append(event);
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

ExitCode Trainer::run() {
  log_start(session_, config_, model_, data_, replicas_, *optimizer_, ema_.get());
  const bool speaks = world_.rank() == 0;
  // The checkpoint's evaluation was due and did not end: it comes first.
  const bool missed_evaluation =
      evaluations_.due_after(done_) && !store_.knows_metric(done_, evaluations_.metrics().front());
  comm::run_on_all(world_, [&] {
    const report::ResumePoint point{.step = done_, .evaluated = !missed_evaluation};
    logs_.emplace(run_, config_.log.tensorboard, point, speaks, [this](const std::string& line) {
      if (progress_) progress_->finish();
      session_.log().warning("{}", line);
    });
    append_start();
  });
  if (fork_) {  // from here on the run does not need the file that it forks from
    save();
    store_.finish();
  }
  run_.write_config(to_text(config_));  // last: a start that fails leaves no run behind
  progress_.emplace(session_.log(), speaks, done_, config_.train.steps, config_.log.every);
  interval_.restart();
  logs_->take_cpu_ms();  // of the start, which is no step's
  try {
    if (const std::optional<ExitCode> code = stop_if_asked(make_pictures(true))) return *code;
    if (missed_evaluation) {
      if (const std::optional<ExitCode> code = stop_if_asked(evaluate())) return *code;
    }
    return take_steps();
  } catch (const std::exception& error) {
    interval_.log_last_steps(replicas_.last_result(), *logs_);
    const auto* const training_error = dynamic_cast<const TrainingError*>(&error);
    if (!training_error) throw;
    // The same on every rank, and earlier steps are good: a save that is being written is still finished.
    try {
      store_.finish();
    } catch (const Error& save_error) {  // the training error matters more
      if (speaks) session_.log().warning("{}", save_error.what());
    }
    blame_data(*training_error, loader_, data_, done_, session_);
    throw;
  }
}

/// Saves and ends the run if a stop was requested.
std::optional<ExitCode> Trainer::stop_if_asked(const ddp::Requests& asked) {
  if (!asked.stop_preempted && !asked.stop_user) return std::nullopt;
  const bool late = time_limit_.is_up(parameter_bytes_);
  logs_->append_event(done_, asked.stop_preempted ? "preempted" : "stopped",
                      late                   ? "ahead of the time limit"
                      : asked.stop_preempted ? "by a signal"
                                             : "as asked");
  save();
  store_.finish();  // a request is obeyed when the checkpoint is on storage
  requests_.clear({.stop_preempted = asked.stop_preempted, .stop_user = asked.stop_user});
  write_timeline();
  ending_ = fmt::format("{} after step {}",
                        late                   ? "stopped ahead of the time limit"
                        : asked.stop_preempted ? "preempted"
                                               : "stopped as asked",
                        done_);
  progress_->note(fmt::format("{}; checkpoint {}", ending_, store_.current_path()));
  return exit_code(asked);
}

ExitCode Trainer::take_steps() {
  const bool speaks = world_.rank() == 0;
  while (done_ < config_.train.steps) {
    const Stopwatch step_watch;
    progress::at_step(done_ + 1, interval_.steps() > 0 ? interval_.step_ms() : 0);
    replicas_.request(requests_of_this_rank());
    const bool last = done_ + 1 == config_.train.steps;
    const bool log = last || (done_ + 1) % config_.log.every == 0;
    const ddp::StepResult result = take_step(log);
    const ddp::Requests& asked = result.requests;
    const bool was_saving = store_.saving();
    store_.advance({.writing = asked.saving, .failed = asked.save_failed});
    if (was_saving && !store_.saving()) time_limit_.note_save(since_save_.elapsed_ms() * 1e-3);
    const auto compute_ms_of = [this](int rank) { return replicas_.compute_ms_of(rank); };
    interval_.add(result, data_wait_ms_, compute_ms_of);
    if (speaks) {
      const std::string news = stragglers_.note(compute_ms_of);
      if (!news.empty()) {
        progress_->note(fmt::format("step {}: {}", done_, news));
        logs_->append_event(done_, "slow_rank", news);
      }
    }
    log_refused_capture();
    logs_->note_lost_lines(done_);
    time_limit_.note_step(step_watch.elapsed_ms() * 1e-3);
    if (const std::string chosen = checkpoint_interval_.after_step(step_watch.elapsed_ms()); !chosen.empty())
      progress_->note(chosen);
    report_step(result, log);
    const bool evaluates = evaluations_.due_after(done_);
    const bool saves = due(config_.checkpoint.every) || last || asked.any();
    if (evaluates || saves || samples_.due_after(done_))
      comm::run_on_all(world_, [&] { check_finite(model_.state(), session_.backend(), done_); });
    if (saves) save();  // before the evaluation, which may take hours
    if (asked.checkpoint) finish_requested_checkpoint();
    const ddp::Requests stop{.stop_preempted = asked.stop_preempted && !last,
                             .stop_user = asked.stop_user && !last};
    if (const std::optional<ExitCode> code = stop_if_asked(stop)) return *code;
    if (const std::optional<ExitCode> code = stop_if_asked(make_pictures())) return *code;
    if (!evaluates) continue;
    if (const std::optional<ExitCode> code = stop_if_asked(evaluate())) return *code;
  }
  progress::enter(Phase::save);
  store_.finish();
  requests_.clear(requests_.pending());  // too late: the run has ended
  write_timeline();
  ending_ = fmt::format("done: {}", pluralized(done_, "step"));
  if (config_.report.write && world_.rank() == 0) write_report(run_.path(), session_.log());
  progress_->note(fmt::format("{}; checkpoint {}; rank 0 took at most {} MiB of {}memory", ending_,
                              store_.current_path(), process_memory().peak_bytes >> 20,
                              session_.backend().device() == Device::cpu() ? "" : "host "));
  return ExitCode::done;
}

/// Up to the first step; then the run, or if it is a dry one `show`, with the resolved configuration.
ExitCode start(Session& session, Config& config, const RunOptions& options,
               const std::function<void(const Config&)>& show) {
  const bool dry = static_cast<bool>(show);
  comm::HostGroup& world = session.world();
  // A stop that is requested during the start is obeyed after a step.
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
