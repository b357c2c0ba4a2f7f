#include "lockstep/train/trainer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/autograd/functions.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/process_memory.h"
#include "lockstep/base/whereabouts.h"
#include "lockstep/checkpoint/load.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/data/loader.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/kernels/transfer.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/train/evaluate.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/precision.h"
#include "lockstep/train/stop.h"
#include "lockstep/train/surroundings.h"
#include "lockstep/train/workload.h"
#include "train/room_options.h"
#include "train/run_config.h"
#include "train/say_start.h"
#include "train/stragglers.h"
#include "train/time_limit.h"

namespace lockstep::train {
namespace {

using whereabouts::Phase;

/// Sums of what a line of metrics averages over the steps since the last one.
struct Interval {
  Stopwatch watch;
  std::int64_t steps = 0;
  double exposed_comm_ms = 0;

  void add(const ddp::StepResult& result) {
    ++steps;
    exposed_comm_ms += result.exposed_comm_ms;
  }
  double step_ms() const { return watch.elapsed_ms() / static_cast<double>(steps); }
};

std::string ema_prefix(const optim::EmaProfile& profile) {
  return fmt::format("eval_ema_{}_", profile.name());
}

/// What each rank opens by itself, before ranks depend on one another.
struct Inputs {
  explicit Inputs(const Config& config) : model(build_model(config)), data(config, model->classes()) {
    model->check_input(data::batch_shape(1, data.train().x_shape()));
  }

  std::unique_ptr<models::Model> model;
  DataSets data;
};

/// How long the parts of a step have taken at most: what a stop in time has to allow for.
struct Longest {
  double step_s = 0, evaluation_s = 0, save_s = 0;

  static void note(double& longest_s, const Stopwatch& watch) {
    longest_s = std::max(longest_s, watch.elapsed_ms() * 1e-3);
  }
};

std::vector<int> shards_of_ranks(const comm::ShardMap& map) {
  std::vector<int> shards;
  for (int rank = 0; rank < map.ranks(); ++rank) shards.push_back(map.block(rank).count);
  return shards;
}

/// A step's shards, read when the step asks for them: what the reading throws is then the step's error on
/// every rank.
struct StepShards {
  data::Loader& loader;
  std::int64_t step;
  std::span<const data::Shard> shards = {};

  auto begin() {
    shards = loader.at(step).shards;
    return shards.begin();
  }
  auto end() const { return shards.end(); }
};

class Trainer {
 public:
  Trainer(Session& session, const Config& config, Inputs& inputs, checkpoint::RunDirectory& run,
          const RunOptions& options, StopRequests& requests, DType compute);
  ExitCode run();

 private:
  void start(const RunOptions& options);
  void warn_of_other_data();
  void check_keep_best() const;
  void check_finite() const;
  ExitCode take_steps();
  ddp::StepResult take_step(bool measure_norm);
  void log_step(const ddp::StepResult& result);
  void say_refused_recording();
  void evaluate_all();
  std::vector<std::string> metrics() const;
  checkpoint::Contents contents();
  void save();
  bool time_is_up() const;
  void write_timeline();
  bool due(std::int64_t every) const { return every > 0 && done_ % every == 0; }

  Session& session_;
  comm::Communicator& world_;
  const Config& config_;
  DType compute_;
  checkpoint::RunDirectory& run_;
  DataSets& data_;
  models::Model& model_;
  ddp::DataParallel replicas_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::Ema> ema_;
  data::Loader loader_;
  optim::Schedule schedule_;
  checkpoint::Store store_;
  std::int64_t done_ = 0;    // steps
  std::int64_t saved_ = -1;  // step of the newest checkpoint
  int waits_ = 0;            // for an asynchronous save, when the next was due
  struct {
    std::int64_t step = -1;
    std::map<std::string, double> metrics;
  } evaluation_;  // the last one
  double learning_rate_ = 0;
  optim::StepResult applied_;
  Interval interval_;
  std::optional<MetricsFile> metrics_;
  std::optional<Progress> progress_;
  std::optional<ddp::Timeline> timeline_;
  StopRequests& requests_;
  TimeLimit time_limit_;
  Stragglers stragglers_;
  Longest longest_;
  Stopwatch since_save_;  // began
  bool said_refused_recording_ = false;
};

Trainer::Trainer(Session& session, const Config& config, Inputs& inputs, checkpoint::RunDirectory& run,
                 const RunOptions& options, StopRequests& requests, DType compute)
    : session_(session),
      world_(session.world()),
      config_(config),
      compute_(compute),
      run_(run),
      data_(inputs.data),
      model_(*inputs.model),
      replicas_(model_, session.transport(), session.backend(), ddp_options(config, compute)),
      optimizer_(build_optimizer(config, replicas_)),
      ema_(build_ema(config, model_, session.backend(), replicas_.sharding())),
      loader_(data_.train(),
              {.global_batch = config.train.global_batch,
               .shards = config.train.shards,
               .seed = config.train.seed,
               .augment = augment_of(config, data_.train()),
               .backend = &session.backend()},
              world_),
      schedule_{optim::schedule_named(config.optimizer.schedule), config.optimizer.lr,
                config.optimizer.min_lr, config.optimizer.warmup_steps},
      store_(run, world_, store_options(config, data_.train(), session.backend(), compute)),
      requests_(requests),
      time_limit_(world_.rank() == 0),
      stragglers_(shards_of_ranks(replicas_.shard_map())) {
  check_keep_best();
  if (ema_) optimizer_->attach(*ema_);
  if (!config_.log.trace.empty()) {
    timeline_.emplace(config_.log.trace, world_);
    replicas_.record(&*timeline_);
  }
  start(options);
}

/// Weights and position: those of the run's newest checkpoint, of a file, or new ones.
void Trainer::start(const RunOptions& options) {
  if (options.resume == "never" && store_.newest()) {
    throw UsageError("{}: holds checkpoints already, and --resume never was asked for; choose another --run",
                     run_.path());
  }
  checkpoint::Contents contents = this->contents();
  done_ = store_.resume_contents(contents);
  if (done_ > 0) {
    saved_ = done_;
    warn_of_other_data();
    session_.log().info("going on after step {} ({})", done_, store_.current_path());
    return;
  }
  if (config_.train.init.empty()) return;
  const checkpoint::LoadReport report = checkpoint::load_weights(
      config_.train.init, model_, world_, {},
      {.strict = config_.checkpoint.load == "strict", .narrow = config_.checkpoint.narrow});
  if (world_.rank() == 0) {
    for (const std::string& warning : report.warnings) session_.log().warning("{}", warning);
  }
  for (const std::string& note : report.notes) session_.log().info("{}", note);
  if (ema_) ema_->reset();
  session_.log().info("a new run from the weights of {}", config_.train.init);
}

/// The order of samples is a function of how many there are: other data goes on in another order.
void Trainer::warn_of_other_data() {
  const checkpoint::Provenance provenance = checkpoint::read_index(store_.current_path(), world_).provenance;
  const auto then = provenance.find(samples_fact);
  const std::string now = std::to_string(data_.train().size());
  if (then == provenance.end() || then->second == now || world_.rank() != 0) return;
  session_.log().warning(
      "the run had {} samples to train on, data.train now has {}: it goes on, in another order of samples "
      "and with another held-out part",
      then->second, now);
}

ddp::StepResult Trainer::take_step(bool measure_norm) {
  const auto loss_of = [&](Tape& tape, const data::Shard& shard, const ddp::Piece& piece) {
    return cross_entropy(model_.forward(tape, piece.rows(shard.x)), piece.rows(shard.y),
                         {.label_smoothing = static_cast<float>(config_.train.label_smoothing)});
  };
  learning_rate_ = schedule_.at(done_, config_.train.steps);
  const optim::StepOptions update{
      .lr = learning_rate_, .clip = config_.optimizer.clip, .measure_norm = measure_norm};
  const ddp::StepResult result =
      replicas_.step(StepShards{loader_, done_}, loss_of, optimizer_->measurement_for(update));
  if (!std::isfinite(result.mean_loss())) {
    throw TrainingError(
        "step {}: the loss is {}; lower optimizer.lr, set optimizer.clip, or look at the data", done_ + 1,
        std::isnan(result.mean_loss()) ? "nan" : "infinite");
  }
  const double start_s = monotonic_s();
  whereabouts::enter(Phase::optimizer);
  applied_ = optimizer_->step(update);
  if (timeline_) timeline_->add("optimizer", ddp::Timeline::compute, done_, start_s, monotonic_s());
  ++done_;
  return result;
}

/// A step can make weights that are not finite from a loss that was: they are neither judged nor saved.
void Trainer::check_finite() const {
  for (const Param* const param : model_.state().params) {
    param->settle();
    const Tensor here = kernels::on_cpu(param->value, &session_.backend());
    const float* const values = here.data<float>();
    if (std::all_of(values, values + param->value.numel(), [](float value) { return std::isfinite(value); }))
      continue;
    throw TrainingError("step {}: {} is not finite; lower optimizer.lr or set optimizer.clip", done_,
                        param->name);
  }
}

void Trainer::log_step(const ddp::StepResult& result) {
  const double step_ms = interval_.step_ms();
  metrics_->append({{"step", done_},
                    {"loss", result.mean_loss()},
                    {"lr", learning_rate_},
                    {"grad_norm", applied_.gradient_norm},
                    {"samples", done_ * config_.train.global_batch},
                    {"samples_per_second", static_cast<double>(config_.train.global_batch) * 1e3 / step_ms},
                    {"step_ms", step_ms},
                    {"exposed_comm_ms", interval_.exposed_comm_ms / static_cast<double>(interval_.steps)},
                    {"time", utc_now()}});
  interval_ = {};
}

void Trainer::say_refused_recording() {
  const std::string& why = replicas_.steps_recorded().refused;
  if (why.empty() || std::exchange(said_refused_recording_, true)) return;
  progress_->note(fmt::format("train.cuda_graph = {}: steps are not recorded as a graph: {}",
                              config_.train.cuda_graph, why));
}

/// Names of what an evaluation finds: "eval_loss", "eval_ema_0.99_accuracy".
std::vector<std::string> Trainer::metrics() const {
  std::vector<std::string> names;
  if (!data_.eval()) return names;
  std::vector<std::string> prefixes{"eval_"};
  if (ema_) {
    for (const optim::EmaProfile& profile : ema_->profiles()) prefixes.push_back(ema_prefix(profile));
  }
  for (const std::string& prefix : prefixes) {
    names.push_back(prefix + "loss");
    if (model_.kind() == models::Kind::classifier) names.push_back(prefix + "accuracy");
  }
  return names;
}

void Trainer::check_keep_best() const {
  const std::string& wanted = config_.checkpoint.keep_best;
  const std::vector<std::string> names = metrics();
  if (wanted.empty() || std::ranges::find(names, wanted) != names.end()) return;
  throw UsageError("checkpoint.keep_best = {}: {}", wanted,
                   names.empty()
                       ? "nothing is evaluated; give data.eval or data.eval_fraction"
                       : fmt::format("is no metric of this run; one of {}", fmt::join(names, ", ")));
}

void Trainer::evaluate_all() {
  if (!data_.eval()) return;
  nlohmann::json line = {{"step", done_}, {"time", utc_now()}};
  std::string text = fmt::format("step {}", done_);
  evaluation_ = {};
  const auto add = [&](const std::string& prefix, const std::string& weights) {
    const Evaluation found = evaluate(model_, replicas_.tape(), *data_.eval(), world_, compute_);
    line[prefix + "loss"] = found.loss;
    evaluation_.metrics[prefix + "loss"] = found.loss;
    text += fmt::format("  {} loss {:.4f}", weights, found.loss);
    if (found.accuracy) {
      line[prefix + "accuracy"] = *found.accuracy;
      evaluation_.metrics[prefix + "accuracy"] = *found.accuracy;
      text += fmt::format(" accuracy {:.4f}", *found.accuracy);
    }
  };
  add("eval_", "eval");
  if (ema_) {
    for (const optim::EmaProfile& profile : ema_->profiles()) {
      const auto swapped = ema_->swap_in(profile.name());
      add(ema_prefix(profile), "ema/" + profile.name());
    }
  }
  evaluation_.step = done_;
  metrics_->append(line);
  progress_->note(text);
  interval_ = {};
}

checkpoint::Contents Trainer::contents() {
  checkpoint::Contents contents;
  checkpoint::add(contents, model_);
  checkpoint::add(contents, *optimizer_);
  if (ema_) checkpoint::add(contents, *ema_);
  if (const auto& hook = replicas_.options().hook) checkpoint::add(contents, *hook);
  return contents;
}

void Trainer::save() {
  if (saved_ == done_) return;
  whereabouts::enter(Phase::checkpoint);
  if (store_.saving()) {
    if (++waits_ == 1)
      progress_->note(fmt::format(
          "step {}: waits for the checkpoint before, which is still being written (said once); a longer "
          "checkpoint.every, or async = false, may be faster",
          done_));
    store_.finish();
  }
  since_save_.restart();
  checkpoint::Contents contents = this->contents();
  if (evaluation_.step == done_) contents.metrics = evaluation_.metrics;
  store_.save_contents(done_, std::move(contents));
  if (!store_.saving()) Longest::note(longest_.save_s, since_save_);
  saved_ = done_;
  interval_ = {};
}

void Trainer::write_timeline() {
  if (!timeline_) return;
  const std::int64_t dropped = timeline_->write();
  progress_->note(fmt::format("trace {}{}", config_.log.trace,
                              dropped == 0 ? "" : fmt::format("; {} later spans were not kept", dropped)));
}

/// Twice what a step and a save may take is left, or less. Until a save was seen it is taken to write the
/// weights and three times as much of state at 100 MB/s.
bool Trainer::time_is_up() const {
  constexpr double careful_bytes_per_s = 100e6;
  double save_s = longest_.save_s;
  if (save_s == 0) {
    for (const Param* const param : replicas_.params())
      save_s += 4 * static_cast<double>(param->value.bytes()) / careful_bytes_per_s;
  }
  const bool evaluates = config_.train.eval_every > 0 && (done_ + 1) % config_.train.eval_every == 0;
  return time_limit_.left_s() < 2 * (longest_.step_s + (evaluates ? longest_.evaluation_s : 0) + save_s);
}

ExitCode Trainer::run() {
  say_start(session_, config_, model_, data_, replicas_, *optimizer_, ema_.get());
  const bool speaks = world_.rank() == 0;
  comm::together(world_, [&] { metrics_.emplace(run_.metrics_path(), done_, speaks); });
  progress_.emplace(session_.log(), speaks, done_, config_.train.steps, config_.log.every);
  interval_ = {};
  try {
    return take_steps();
  } catch (const TrainingError&) {
    // The same on every rank, and no fault of what was saved before: that is still seen through.
    store_.finish();
    throw;
  }
}

ExitCode Trainer::take_steps() {
  const bool speaks = world_.rank() == 0;
  while (done_ < config_.train.steps) {
    const Stopwatch step_watch;
    whereabouts::at_step(done_ + 1, interval_.steps > 0 ? interval_.step_ms() : 0);
    const Requests asked = requests_.pending();
    const bool late = time_is_up();
    const checkpoint::Store::Writer writer = store_.writer();
    replicas_.request({.stop_preempted = asked.preempt || late,
                       .stop_user = asked.user_stop,
                       .checkpoint = asked.checkpoint,
                       .saving = writer.writing,
                       .save_failed = writer.failed});
    const bool last = done_ + 1 == config_.train.steps;
    const bool log = last || (done_ + 1) % config_.log.every == 0;
    const ddp::StepResult result = take_step(log);
    const bool was_saving = store_.saving();
    store_.advance({.writing = result.requests.saving, .failed = result.requests.save_failed});
    if (was_saving && !store_.saving()) Longest::note(longest_.save_s, since_save_);
    interval_.add(result);
    if (speaks) {
      const std::string news = stragglers_.note([this](int rank) { return replicas_.compute_ms_of(rank); });
      if (!news.empty()) progress_->note(fmt::format("step {}: {}", done_, news));
    }
    say_refused_recording();
    Longest::note(longest_.step_s, step_watch);
    progress_->step(done_, result.mean_loss(),
                    static_cast<double>(config_.train.global_batch) * 1e3 / interval_.step_ms());
    if (log) log_step(result);
    const bool evaluates = due(config_.train.eval_every) || last;
    const bool saves = due(config_.checkpoint.every) || last || result.requests.any();
    if (saves && config_.ddp.check_every > 0) replicas_.check_replicas();  // a divided run is not saved
    if (evaluates || saves) comm::together(world_, [&] { check_finite(); });
    if (evaluates) {
      const Stopwatch watch;
      whereabouts::enter(Phase::evaluation);
      evaluate_all();
      Longest::note(longest_.evaluation_s, watch);
    }
    if (saves) save();
    if (result.requests.any()) store_.finish();  // what was asked for is obeyed when it is on storage
    if (result.requests.checkpoint)
      progress_->note(fmt::format("checkpoint {}, as asked", store_.current_path()));
    requests_.clear({result.requests.stop_preempted, result.requests.stop_user, result.requests.checkpoint});
    if (!last && (result.requests.stop_preempted || result.requests.stop_user)) {
      write_timeline();
      progress_->note(fmt::format("{} after step {}; checkpoint {}",
                                  late                             ? "stopped ahead of the time limit"
                                  : result.requests.stop_preempted ? "preempted"
                                                                   : "stopped as asked",
                                  done_, store_.current_path()));
      return result.requests.stop_preempted ? ExitCode::preempted : ExitCode::user_stopped;
    }
  }
  whereabouts::enter(Phase::checkpoint);
  store_.finish();
  write_timeline();
  progress_->note(fmt::format("done: {} steps; checkpoint {}; rank 0 took at most {} MiB of {}memory", done_,
                              store_.current_path(), process_memory().peak_bytes >> 20,
                              session_.backend().device() == Device::cpu() ? "" : "host "));
  return ExitCode::done;
}

}  // namespace

ExitCode train(Session& session, Config config, const RunOptions& options) {
  comm::Communicator& world = session.world();
  StopRequests requests(options.directory,
                        world.rank() == 0);  // what comes during the start is obeyed after a step
  session.watch(config.fault.hang_timeout_s, config.fault.signal_report);
  check_alike(world, config, options);
  session.use_device(config.train.device, {.threads = std::max(1, config.train.threads),
                                           .reproducible = config.train.reproducible});
  const DType compute = settle_precision(session, config.train.precision, config.train.bf16_fallback);
  std::optional<Inputs> inputs;
  comm::together(world, [&] { inputs.emplace(config); });
  checkpoint::RunDirectory run(options.directory, world);
  settle(config, run, options, world);
  settle_threads(config, session);
  inputs->model->to(session.backend());
  Trainer trainer(session, config, *inputs, run, options, requests, compute);
  run.write_config(to_text(config));  // only now: what failed to start leaves no run behind
  return trainer.run();
}

}  // namespace lockstep::train
