// The Trainer. It is one long file because steps, evaluations, saves and stops change the same state, and
// their order matters: a reader must see it in one place.
#include "train/trainer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.h"
#include "base/progress.h"
#include "base/resources.h"
#include "base/streams.h"
#include "base/text.h"
#include "lockstep/autograd/functions.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/data/loader.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/optim/registry.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/train/evaluate.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/stop.h"
#include "train/memory_need.h"
#include "train/precision.h"
#include "train/room_options.h"
#include "train/run_config.h"
#include "train/say_start.h"
#include "train/stragglers.h"
#include "train/surroundings.h"
#include "train/time_limit.h"
#include "train/workload.h"

namespace lockstep::train {
namespace {

using progress::Phase;

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

struct Inputs {
  std::unique_ptr<models::Model> model;
  std::unique_ptr<DataSets> data;
};

/// Provenance: what starts have changed of the configuration.
constexpr const char* changes_fact = "config_changes";

/// What each rank opens by itself, before ranks depend on one another. The model is made last, when it is
/// known that the machines can hold what the run needs. Collective.
Inputs open_inputs(const Config& config, Session& session) {
  comm::HostGroup& world = session.world();
  Inputs inputs;
  MemoryNeed need;
  comm::run_on_all(world, [&] {
    const std::unique_ptr<models::Model> meta = build_meta_model(config);
    inputs.data = std::make_unique<DataSets>(config, meta->classes());
    meta->check_input(data::batch_shape(1, inputs.data->train().x_shape()));
    need = memory_need(config, meta->state(), inputs.data->train(), world.size(), session.backend().device());
  });
  check_memory(need, world);
  comm::run_on_all(world, [&] { inputs.model = build_model(config); });
  return inputs;
}

/// How long what cannot be cut short has taken at most: what a stop in time has to allow for.
struct Longest {
  double step_s = 0, save_s = 0;

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
  void warn_of_other_data(const checkpoint::Provenance& provenance);
  void check_keep_best() const;
  void check_finite() const;
  ExitCode take_steps();
  ddp::StepResult take_step(bool measure_norm);
  void log_step(const ddp::StepResult& result);
  void say_refused_recording();
  void say_checkpoint_as_asked();
  void note_silence();
  void choose_checkpoint_interval(double step_ms);
  bool evaluates_at(std::int64_t step) const;
  std::int64_t evaluations_left() const;
  ddp::Requests evaluate_all();
  std::unique_ptr<optim::Ema::SwappedIn> swapped_in(const optim::EmaProfile& profile);
  ddp::Requests requests_of_this_rank() const;
  bool act_within_evaluation(const ddp::Requests& asked, double part, ddp::Requests& stopped,
                             std::unique_ptr<optim::Ema::SwappedIn>& swapped,
                             const optim::EmaProfile* profile);
  std::optional<ExitCode> stop_if_asked(const ddp::Requests& asked);
  std::vector<std::string> metrics() const;
  checkpoint::StateDict contents();
  void save();
  void log_start();
  bool time_is_up() const;
  void write_timeline();
  bool due(std::int64_t every) const { return every > 0 && done_ % every == 0; }

  Session& session_;
  comm::HostGroup& world_;
  Config config_;
  std::vector<KeyChange> changed_;  // by this start, of the checkpoint it begins with
  std::string changes_;             // by this start and those before, as provenance says it
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
  std::int64_t done_ = 0;        // steps
  std::int64_t saved_ = -1;      // step of the newest checkpoint
  int waits_ = 0;                // for an asynchronous save, when the next was due
  std::vector<double> step_ms_;  // of the first steps, while checkpoint.every is not known
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
  bool said_refused_recording_ = false, noted_silence_ = false;
};

Trainer::Trainer(Session& session, const Config& config, Inputs& inputs, checkpoint::RunDirectory& run,
                 const RunOptions& options, StopRequests& requests, DType compute)
    : session_(session),
      world_(session.world()),
      config_(config),
      compute_(compute),
      run_(run),
      data_(*inputs.data),
      model_(*inputs.model),
      replicas_(model_, session.transport(), session.backend(), ddp_options(config, compute)),
      optimizer_(optim::make_optimizer(config.optimizer, replicas_)),
      ema_(build_ema(config, model_, session.backend(), replicas_.partition())),
      loader_(data_.train(),
              {.global_batch = config.train.global_batch,
               .shards = config.train.shards,
               .seed = config.train.seed,
               .augment = augment_of(config, data_.train()),
               .backend = &session.backend()},
              world_),
      schedule_(optim::schedule_of(config.optimizer)),
      store_(run, world_, store_options(config, data_, session.backend(), compute)),
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
  checkpoint::StateDict contents = this->contents();
  done_ = store_.resume_state_dict(contents);
  if (done_ > 0) {
    saved_ = done_;
    const checkpoint::FileIndex index = checkpoint::read_index(store_.current_path(), world_);
    const checkpoint::Provenance& provenance = index.provenance;
    if (const auto then = provenance.find(tokenizer_fact); then != provenance.end())
      check_tokenizer("data.train", data_.tokenizer(), store_.current_path(), then->second);
    warn_of_other_data(provenance);
    if (const auto before = provenance.find(changes_fact); before != provenance.end())
      changes_ = before->second;
    // Against the checkpoint, not config.ini: a start between may have changed that and saved nothing.
    if (!index.config.empty())
      changed_ = changes(parse_stored_config(index.config, store_.current_path() + " /config"), config_);
    std::erase_if(changed_,
                  [](const KeyChange& change) { return change.before == "auto"; });  // found out since
    for (const KeyChange& change : changed_)
      changes_ += fmt::format("{}step {}: {} = {} (was {})", changes_.empty() ? "" : "; ", done_, change.key,
                              change.now, change.before);
    session_.log().info("going on after step {} ({})", done_, store_.current_path());
    return;
  }
  if (config_.train.init.empty()) return;
  comm::run_on_all(world_, [&] {
    if (world_.rank() == 0) check_beside(config_.train.init, config_);
  });
  const checkpoint::LoadReport report = checkpoint::load_weights(
      config_.train.init, model_, world_, {},
      {.strict = config_.checkpoint.load == "strict", .narrow = config_.checkpoint.narrow});
  if (world_.rank() == 0) {
    for (const std::string& warning : report.warnings) session_.log().warning("{}", warning);
  }
  for (const std::string& note : report.notes) session_.log().info("{}", note);
  store_.note(report.provenance);
  if (ema_) ema_->reset();
  session_.log().info("a new run from the weights of {}", config_.train.init);
}

/// The order of samples is a function of how many there are: other data continues in another order.
void Trainer::warn_of_other_data(const checkpoint::Provenance& provenance) {
  const auto then = provenance.find(samples_fact);
  const std::string now = std::to_string(data_.train().size());
  if (then == provenance.end() || then->second == now || world_.rank() != 0) return;
  session_.log().warning(
      "the run had {} samples to train on, data.train now has {}: it goes on, in another order of samples "
      "and with another held-out part",
      then->second, now);
}

ddp::StepResult Trainer::take_step(bool measure_norm) {
  const auto loss_of = [&](Tape& tape, const data::Shard& shard, const ddp::MicroBatch& piece) {
    return cross_entropy(model_.forward(tape, piece.rows(shard.x)), piece.rows(shard.y),
                         {.label_smoothing = static_cast<float>(config_.train.label_smoothing)});
  };
  learning_rate_ = schedule_.at(done_, config_.train.steps);
  const optim::StepOptions update{
      .lr = learning_rate_, .clip = config_.optimizer.clip, .measure_norm = measure_norm};
  const ddp::StepResult result =
      replicas_.step(StepShards{loader_, done_}, loss_of, optimizer_->measurement_for(update));
  const double start_s = monotonic_s();
  progress::enter(Phase::optimizer);
  applied_ = optimizer_->step(update);
  if (timeline_) timeline_->add("optimizer", ddp::Timeline::compute, done_, start_s, monotonic_s());
  ++done_;
  return result;
}

/// A step can make weights that are not finite from a loss that was: they are neither judged nor saved.
void Trainer::check_finite() const {
  for (const Param* const param : model_.state().params) {
    param->wait_ready();
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

/// Log lines that nobody gets are no reason to end; metrics say it, once.
void Trainer::note_silence() {
  if (world_.rank() != 0 || noted_silence_) return;
  const std::string trouble = standard_error_trouble();
  if (trouble.empty()) return;
  noted_silence_ = true;
  metrics_->append({{"step", done_},
                    {"time", utc_now()},
                    {"note", fmt::format("lines on standard error were lost: {}", trouble)}});
}

void Trainer::say_refused_recording() {
  const std::string& why = replicas_.captured_steps().refused;
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

bool Trainer::evaluates_at(std::int64_t step) const {
  const std::int64_t every = config_.train.eval_every;
  return data_.eval() && step > 0 && ((every > 0 && step % every == 0) || step == config_.train.steps);
}

/// After this step; the last step's is one, too.
std::int64_t Trainer::evaluations_left() const {
  if (!data_.eval() || done_ >= config_.train.steps) return 0;
  const std::int64_t every = config_.train.eval_every;
  const std::int64_t regular = every > 0 ? (config_.train.steps - 1) / every - done_ / every : 0;
  return regular + 1;
}

ddp::Requests Trainer::requests_of_this_rank() const {
  const Requests asked = requests_.pending();
  const checkpoint::Store::Writer writer = store_.writer();
  return {.stop_preempted = asked.preempt || time_is_up(),
          .stop_user = asked.user_stop,
          .checkpoint = asked.checkpoint,
          .saving = writer.writing,
          .save_failed = writer.failed};
}

/// Of every weights there are; what it finds is logged and recorded. It is cut short when a stop is asked
/// for, which is then returned, and leaves nothing: who resumes makes it first. A checkpoint that is asked
/// for is saved meanwhile.
ddp::Requests Trainer::evaluate_all() {
  progress::enter(Phase::evaluation);
  nlohmann::json line = {{"step", done_}, {"time", utc_now()}};
  std::string text = fmt::format("step {}", done_);
  std::map<std::string, double> metrics;
  ddp::Requests stopped;
  std::vector<const optim::EmaProfile*> weights{nullptr};  // the model's own
  if (ema_) {
    for (const optim::EmaProfile& profile : ema_->profiles()) weights.push_back(&profile);
  }
  progress_->evaluation(done_, 0, evaluations_left());
  for (std::size_t w = 0; w < weights.size(); ++w) {
    const optim::EmaProfile* const profile = weights[w];
    std::unique_ptr<optim::Ema::SwappedIn> swapped;
    if (profile) swapped = swapped_in(*profile);
    const EvaluationWatch watch{
        .requests = [this] { return requests_of_this_rank().to_bits(); },
        .act =
            [&](std::uint64_t of_any, double part) {
              const double whole_part = (static_cast<double>(w) + part) / static_cast<double>(weights.size());
              return act_within_evaluation(ddp::Requests::from_bits(of_any), std::min(whole_part, 0.9999),
                                           stopped, swapped, profile);
            }};
    const std::optional<Evaluation> found =
        evaluate(model_, replicas_.tape(), *data_.eval(), world_, compute_, watch);
    if (!found) {
      progress_->evaluation(done_, 1, evaluations_left());
      return stopped;
    }
    const std::string prefix = profile ? ema_prefix(*profile) : "eval_";
    metrics[prefix + "loss"] = found->loss;
    text += fmt::format("  {} loss {:.4f}", profile ? "ema/" + profile->name() : "eval", found->loss);
    if (!found->accuracy) continue;
    metrics[prefix + "accuracy"] = *found->accuracy;
    text += fmt::format(" accuracy {:.4f}", *found->accuracy);
  }
  progress_->evaluation(done_, 1, evaluations_left());
  line.update(metrics);
  comm::run_on_all(world_, [&] {
    metrics_->append(line);
    metrics_->sync();  // the record will say that the line is there
  });
  if (saved_ == done_) store_.note_metrics(done_, metrics);
  progress_->note(text);
  interval_ = {};
  return {};
}

/// The model holds an average while the result lives.
std::unique_ptr<optim::Ema::SwappedIn> Trainer::swapped_in(const optim::EmaProfile& profile) {
  return std::unique_ptr<optim::Ema::SwappedIn>(new optim::Ema::SwappedIn(ema_->swap_in(profile.name())));
}

/// Between two batches, collectively. False if the evaluation is to end.
bool Trainer::act_within_evaluation(const ddp::Requests& asked, double part, ddp::Requests& stopped,
                                    std::unique_ptr<optim::Ema::SwappedIn>& swapped,
                                    const optim::EmaProfile* profile) {
  store_.advance({.writing = asked.saving, .failed = asked.save_failed});
  if (asked.checkpoint) {
    swapped.reset();  // what is saved is the model
    save();
    store_.finish();
    say_checkpoint_as_asked();
    if (profile) swapped = swapped_in(*profile);
    progress::enter(Phase::evaluation);
  }
  progress_->evaluation(done_, part, evaluations_left());
  stopped = {.stop_preempted = asked.stop_preempted, .stop_user = asked.stop_user};
  return !stopped.any();
}

void Trainer::say_checkpoint_as_asked() {
  progress_->note(fmt::format("checkpoint {}, as asked", store_.current_path()));
  requests_.clear({.preempt = false, .user_stop = false, .checkpoint = true});
}

/// checkpoint.every = auto: as many steps as take ten minutes at the pace of the first ones, on rank 0.
void Trainer::choose_checkpoint_interval(double step_ms) {
  constexpr std::size_t steps_to_judge = 20;
  constexpr double wanted_s = 600;
  if (config_.checkpoint.every != CheckpointConfig::auto_every) return;
  step_ms_.push_back(step_ms);
  if (step_ms_.size() < steps_to_judge) return;
  std::int64_t every = std::max<std::int64_t>(1, std::llround(wanted_s * 1e3 / median(step_ms_)));
  world_.broadcast(&every, sizeof every, 0);
  config_.checkpoint.every = every;
  const std::string text = to_text(config_);
  run_.write_config(text);
  store_.set_config(text);
  progress_->note(fmt::format("checkpoint.every = auto: a checkpoint every {}, which take about {:.0f} s",
                              pluralized(every, "step"),
                              static_cast<double>(every) * median(step_ms_) * 1e-3));
}

checkpoint::StateDict Trainer::contents() {
  checkpoint::StateDict contents;
  checkpoint::add(contents, model_);
  checkpoint::add(contents, *optimizer_);
  if (ema_) checkpoint::add(contents, *ema_);
  return contents;
}

void Trainer::save() {
  if (saved_ == done_) return;
  if (config_.ddp.check_every > 0) replicas_.check_replicas();  // a divided run is not saved
  progress::enter(Phase::checkpoint);
  if (store_.saving()) {
    if (++waits_ == 1)
      progress_->note(fmt::format(
          "step {}: waits for the checkpoint before, which is still being written (said once); a longer "
          "checkpoint.every, or async = false, may be faster",
          done_));
    store_.finish();
  }
  since_save_.restart();
  comm::run_on_all(world_, [&] { metrics_->sync(); });
  checkpoint::StateDict contents = this->contents();
  if (!changes_.empty()) contents.provenance[changes_fact] = changes_;
  store_.save_state_dict(done_, std::move(contents));
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
  return time_limit_.left_s() < 2 * (longest_.step_s + save_s);
}

/// A line of metrics for each start: what it began with, and what it changed.
void Trainer::log_start() {
  nlohmann::json changed = nlohmann::json::object();
  for (const KeyChange& change : changed_)
    changed[change.key] = {{"from", change.before}, {"to", change.now}};
  metrics_->append({{"start", done_ > 0 ? "resumed" : "new"},
                    {"step", done_},
                    {"time", utc_now()},
                    {"ranks", world_.size()},
                    {"nodes", world_.topology().nodes()},
                    {"version", checkpoint::provenance_of(world_).at("version")},
                    {"changes", changed}});
}

ExitCode Trainer::run() {
  say_start(session_, config_, model_, data_, replicas_, *optimizer_, ema_.get());
  const bool speaks = world_.rank() == 0;
  // An evaluation that the checkpoint is due, and that was cut short: it comes first.
  const bool catches_up = evaluates_at(done_) && !store_.knows_metric(done_, metrics().front());
  comm::run_on_all(world_, [&] {
    metrics_.emplace(run_.metrics_path(), done_, !catches_up, speaks);
    log_start();
  });
  progress_.emplace(session_.log(), speaks, done_, config_.train.steps, config_.log.every);
  interval_ = {};
  try {
    if (catches_up) {
      if (const std::optional<ExitCode> code = stop_if_asked(evaluate_all())) return *code;
    }
    return take_steps();
  } catch (const TrainingError&) {
    // The same on every rank, and no fault of what was saved before: that is still seen through.
    try {
      store_.finish();
    } catch (const Error& error) {  // second to what is thrown again
      if (speaks) session_.log().warning("{}", error.what());
    }
    throw;
  }
}

/// The end of a run that was told to stop, once it is saved.
std::optional<ExitCode> Trainer::stop_if_asked(const ddp::Requests& asked) {
  if (!asked.stop_preempted && !asked.stop_user) return std::nullopt;
  const bool late = time_is_up();
  save();
  store_.finish();  // what was asked for is obeyed when it is on storage
  requests_.clear({.preempt = asked.stop_preempted, .user_stop = asked.stop_user, .checkpoint = false});
  write_timeline();
  progress_->note(fmt::format("{} after step {}; checkpoint {}",
                              late                   ? "stopped ahead of the time limit"
                              : asked.stop_preempted ? "preempted"
                                                     : "stopped as asked",
                              done_, store_.current_path()));
  return asked.stop_preempted ? ExitCode::preempted : ExitCode::user_stopped;
}

ExitCode Trainer::take_steps() {
  const bool speaks = world_.rank() == 0;
  while (done_ < config_.train.steps) {
    const Stopwatch step_watch;
    progress::at_step(done_ + 1, interval_.steps > 0 ? interval_.step_ms() : 0);
    replicas_.request(requests_of_this_rank());
    const bool last = done_ + 1 == config_.train.steps;
    const bool log = last || (done_ + 1) % config_.log.every == 0;
    const ddp::StepResult result = take_step(log);
    const ddp::Requests& asked = result.requests;
    const bool was_saving = store_.saving();
    store_.advance({.writing = asked.saving, .failed = asked.save_failed});
    if (was_saving && !store_.saving()) Longest::note(longest_.save_s, since_save_);
    interval_.add(result);
    if (speaks) {
      const std::string news = stragglers_.note([this](int rank) { return replicas_.compute_ms_of(rank); });
      if (!news.empty()) progress_->note(fmt::format("step {}: {}", done_, news));
    }
    say_refused_recording();
    note_silence();
    Longest::note(longest_.step_s, step_watch);
    choose_checkpoint_interval(step_watch.elapsed_ms());
    progress_->step(done_, result.mean_loss(),
                    static_cast<double>(config_.train.global_batch) * 1e3 / interval_.step_ms(),
                    evaluations_left());
    if (log) log_step(result);
    const bool evaluates = evaluates_at(done_);
    const bool saves = due(config_.checkpoint.every) || last || asked.any();
    if (evaluates || saves) comm::run_on_all(world_, [&] { check_finite(); });
    if (saves) save();  // first: an evaluation may take hours
    if (asked.checkpoint) {
      store_.finish();
      say_checkpoint_as_asked();
    }
    const ddp::Requests stop{.stop_preempted = asked.stop_preempted && !last,
                             .stop_user = asked.stop_user && !last};
    if (const std::optional<ExitCode> code = stop_if_asked(stop)) return *code;
    if (!evaluates) continue;
    if (const std::optional<ExitCode> code = stop_if_asked(evaluate_all())) return *code;
  }
  progress::enter(Phase::checkpoint);
  store_.finish();
  requests_.clear(requests_.pending());  // too late: the run is at its end
  write_timeline();
  progress_->note(fmt::format("done: {}; checkpoint {}; rank 0 took at most {} MiB of {}memory",
                              pluralized(done_, "step"), store_.current_path(),
                              process_memory().peak_bytes >> 20,
                              session_.backend().device() == Device::cpu() ? "" : "host "));
  return ExitCode::done;
}

}  // namespace

ExitCode train(Session& session, Config config, const RunOptions& options) {
  comm::HostGroup& world = session.world();
  StopRequests requests(options.directory,
                        world.rank() == 0);  // what comes during the start is obeyed after a step
  session.watch(config.fault.hang_timeout_s, config.fault.signal_report);
  check_alike(world, config, options);
  session.use_device(config.train.device, {.threads = std::max(1, config.train.threads),
                                           .reproducible = config.train.reproducible});
  const DType compute = settle_precision(session, config.train.precision, config.train.bf16_fallback);
  Inputs inputs = open_inputs(config, session);
  checkpoint::RunDirectory run(options.directory, world);
  settle(config, run, options, inputs.data->train().size(), world);
  settle_threads(config, session);
  check_same_updates(config, session.backend(), world);
  inputs.model->to(session.backend());
  Trainer trainer(session, config, inputs, run, options, requests, compute);
  run.write_config(to_text(config));  // only now: what failed to start leaves no run behind
  return trainer.run();
}

}  // namespace lockstep::train
