#include "lockstep/checkpoint/store.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/progress.h"
#include "base/text.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/profile_snapshots.h"
#include "checkpoint/run_files.h"
#include "checkpoint/save.h"
#include "checkpoint/weights/foreign.h"
#include "ddp/checks.h"
#include "kernels/gpus.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::checkpoint {
namespace {

/// The schedule of `schedule_of`, completed by the run of `run_of`. UsageError if they differ.
DataSchedule merged(DataSchedule schedule, const RunShape& run, const char* schedule_of, const char* run_of) {
  const auto take = [&](const char* what, bool known, auto& mine, auto theirs) {
    if (known && mine != theirs)
      throw UsageError(
          "{} has {} {}, but {} has {}; set it once, by Session::set_run() before everything else",
          schedule_of, what, mine, run_of, theirs);
    mine = theirs;
  };
  if (run.shards != 0) {
    const bool known = schedule.shards != 0;
    take("shards", known, schedule.shards, std::int64_t{run.shards});
    take("seed", known, schedule.seed, run.seed);
  }
  if (run.global_batch != 0)
    take("a global batch of", schedule.samples_per_step != 0, schedule.samples_per_step, run.global_batch);
  return schedule;
}

}  // namespace

std::vector<Option<StoreOptions>> StoreOptions::options() {
  using namespace option;
  using S = StoreOptions;
  return {
      number("keep", &S::keep, Range::from(1, 1e6), "number of newest checkpoints to keep",
             {.may_change = true, .peers = {"keep_last", "save_total_limit", "max_to_keep", "save_top_k"}}),
      text("keep_best", &S::keep_best,
           "metric whose best evaluation is saved, independently of every, and kept", {.may_change = true}),
      flag("async", &S::async, "train on while a checkpoint is written",
           {.may_change = true, .peers = {"async_save"}}),
      choice("load", &S::strict, {{"strict", true}, {"partial", false}},
             "partial: missing, unexpected and mis-shaped tensors are logged, not an error",
             {.may_change = true, .peers = {"strict"}}),
      flag("narrow", &S::narrow, "round float64 of a file to float32", {.may_change = true}),
  };
}

Position DataSchedule::at(std::int64_t step) const {
  const std::int64_t samples = step * samples_per_step;
  return {step, samples_per_epoch > 0 ? samples / samples_per_epoch : 0, samples, shards, seed};
}

Store::Store(const std::string& run_directory, comm::HostGroup& world, StoreOptions options)
    : Store(nullptr, std::make_unique<RunDirectory>(run_directory, world), world, std::move(options)) {}

Store::Store(const std::string& run_directory, Context& context, StoreOptions options)
    : Store(run_directory, context.world(), [&] {
        options.schedule = merged(options.schedule, context.run(), "StoreOptions::schedule", "the context");
        const kernels::Backend& backend = context.backend();
        options.provenance.merge(Provenance{{"device", kernels::name_of(backend.device())},
                                            {"threads", std::to_string(backend.threads())},
                                            {"instruction_set", backend.instruction_set()},
                                            {"math_library", backend.math_library()}});
        return std::move(options);
      }()) {}

Store::Store(RunDirectory& run_directory, comm::HostGroup& world, StoreOptions options)
    : Store(&run_directory, nullptr, world, std::move(options)) {}

Store::Store(RunDirectory* run_directory, std::unique_ptr<RunDirectory> own, comm::HostGroup& world,
             StoreOptions options)
    : own_run_directory_(std::move(own)),
      run_directory_(own_run_directory_ ? *own_run_directory_ : *run_directory),
      directory_(run_directory_.checkpoints_path()),
      world_(world),
      options_(std::move(options)),
      provenance_(provenance_of(world)),
      log_(world.rank()),
      retention_(std::make_unique<Retention>(
          options_.keep, options_.keep_best,
          options_.more_is_better.value_or(options_.keep_best.ends_with("accuracy")))),
      attempts_(std::make_unique<AttemptCounter>(directory_ + "/starts")),
      memory_(std::make_unique<SaveMemory>()) {
  const comm::NamedCall call(world_, "makes a Store");
  for (const auto& [name, value] : options_.provenance) provenance_[name] = value;
  comm::run_on_all(world_, [&] {
    if (world_.rank() != 0) return;
    if (!run_directory_.is_read_only()) remove_drafts(directory_, log_);
    evaluations_ = std::make_unique<EvaluationRecords>(directory_ + "/evaluations.json", log_);
    if (retention_->metric().empty()) return;
    for (const std::int64_t step : steps_in(directory_))
      retention_->note(step, metric_of(step, options_.keep_best));
  });
  snapshots_ = std::make_unique<ProfileSnapshots>(run_directory_, world_);
}

/// All ranks call the method of a store of the same directory, with the same `what`.
comm::NamedCall Store::named(const char* method, const std::string& what) const {
  return {world_, fmt::format("calls Store::{}: {}{}in {}", method, what, what.empty() ? "" : " ",
                              file_name_of(run_directory_.path()))};
}

namespace {

/// "model, optimizer, ema/0.5".
std::string names_of(const StateDict& state_dict) {
  std::vector<std::string> names;
  for (const Section& section : state_dict.sections)
    if (!section.path.starts_with("optimizer/"))
      names.push_back(section.path);  // "optimizer" stands for its slots
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

/// On rank 0.
std::optional<double> Store::metric_of(std::int64_t step, const std::string& metric) const {
  if (const double* const found = evaluations_->find(step, metric)) return *found;
  try {
    const Provenance stored = read_index(directory_ + "/" + name_of_step(step)).provenance;
    const auto found = stored.find(metric);
    if (double value = 0; found != stored.end() && parse_number(found->second, value)) return value;
  } catch (const Error&) {  // a damaged checkpoint cannot be the best
  }
  return std::nullopt;
}

std::optional<double> Store::find_metric(std::int64_t step, const std::string& metric) {
  const comm::NamedCall call = named("find_metric");
  finish();
  const std::string text = from_rank_0(world_, [&] {  // as text, since JSON has no NaN
    const std::optional<double> found = metric_of(step, metric);
    return found ? fmt::to_string(*found) : std::string();
  });
  double value = 0;
  return parse_number(text, value) ? std::optional(value) : std::nullopt;
}

bool Store::would_be_best(std::int64_t step, const std::map<std::string, double>& metrics) {
  const auto found = metrics.find(options_.keep_best);
  if (found == metrics.end()) return false;
  const comm::NamedCall call = named("would_be_best", fmt::format("step {}", step));
  finish();
  return from_rank_0(world_, [&] {
    Retention after = *retention_;
    after.note(step, found->second);
    std::vector<std::int64_t> steps = steps_in(directory_);
    std::erase_if(steps, [step](std::int64_t other) { return other > step; });
    steps.push_back(step);
    return after.best(steps) == step;
  });
}

void Store::note_metrics(std::int64_t step, const std::map<std::string, double>& metrics) {
  const comm::NamedCall call = named("note_metrics", fmt::format("step {}", step));
  finish();
  comm::run_on_all(world_, [&] {
    if (world_.rank() != 0 || !exists(directory_ + "/" + name_of_step(step))) return;
    run_directory_.check_held();
    evaluations_->set(step, metrics);
    const auto found = metrics.find(options_.keep_best);
    if (found == metrics.end()) return;
    retention_->note(step, found->second);
    link_best();
    evaluations_->forget(prune(step));
  });
}

Store::~Store() {
  const bool in_order = std::uncaught_exceptions() == 0;
  if (pending_save_ && in_order && world_.rank() == 0)
    log_.warning("{}: not written, as Store::finish was not called", pending_save_->path());
  pending_save_.reset();  // ends the worker thread
  if (in_order) take_back_attempt();
}

/// The last attempt ended without a newer checkpoint, but not because of the checkpoint.
void Store::take_back_attempt() {
  if (!attempt_from_) return;
  try {
    run_directory_.check_held();
    attempts_->take_back(*std::exchange(attempt_from_, std::nullopt));
  } catch (const std::exception& error) {
    log_.warning("{}", error.what());
  }
}

DataSchedule Store::schedule(const RunShape& of_source) const {
  return merged(options_.schedule, of_source, "the store", "the DataParallel of the optimizer");
}

/// Adds the facts that every checkpoint of this run records.
StateDict Store::completed(std::int64_t step, StateDict state_dict) const {
  state_dict.position = schedule(state_dict.run).at(step);
  state_dict.config = options_.config;
  Provenance provenance = provenance_;
  provenance.merge(state_dict.provenance);
  for (const auto& [name, value] : state_dict.metrics) provenance[name] = fmt::format("{}", value);
  if (!current_path_.empty()) provenance["parent_checkpoint"] = current_path_;
  state_dict.provenance = std::move(provenance);
  return state_dict;
}

void Store::note(const Provenance& facts) {
  for (const auto& [name, value] : facts) provenance_[name] = value;
}

/// Called before the first save, which would mix different values of ranks.
void Store::check_alike(const StateDict& state_dict) {
  if (compared_) return;
  std::vector<ParamState::Entry> values;
  for (const Section& section : state_dict.sections)
    for (const NamedTensor& tensor : section.tensors)
      if (!tensor.part) values.push_back({section.path + "/" + tensor.name, tensor.value});
  const std::string apart = ddp::differing_values(world_, values, state_dict.backend);
  compared_ = apart.empty();
  if (compared_) return;
  throw TrainingError(
      "{}: not saved: the ranks hold different values of {}; look for different code paths of ranks",
      directory_, apart);
}

std::string Store::save_state_dict(std::int64_t step, StateDict sections) {
  const progress::During saves(progress::Phase::save);
  const comm::NamedCall call = named("save", fmt::format("step {} with {}", step, names_of(sections)));
  finish();
  comm::run_on_all(world_, [&] {
    if (sections.swapped_in)
      throw UsageError("{}: EMA weights are swapped in; end the evaluation before a save", directory_);
    if (world_.rank() == 0 && current_path_.empty() && !steps_in(directory_).empty())
      log_.warning("{}: has checkpoints that this program did not resume from; it adds its own to them",
                   directory_);
  });
  const StateDict state_dict = completed(step, std::move(sections));
  std::optional<double> metric;
  if (const auto found = state_dict.metrics.find(options_.keep_best); found != state_dict.metrics.end())
    metric = found->second;
  const auto check_may_write = [this] { run_directory_.check_held(); };
  const SaveOptions options{.mark = run_directory_.mark(),
                            .check_may_write = check_may_write,
                            .allow_non_finite = options_.allow_non_finite};
  // The snapshot comes first, so that it exists whenever the checkpoint does.
  std::vector<std::unique_ptr<FileWriter>> files;
  if (auto snapshot = snapshots_->begin(state_dict, options)) files.push_back(std::move(snapshot));
  const std::string path = directory_ + "/" + name_of_step(step);
  files.push_back(std::make_unique<FileWriter>(path, state_dict, world_, options));
  check_alike(state_dict);  // after the check that they hold the same tensors
  pending_save_ = std::make_unique<SaveJob>(
      std::move(files),
      SaveJob::Options{.async = options_.async,
                       .check_may_write = check_may_write,
                       .published = [this, step, metric] { published(step, metric); }},
      *memory_, world_);
  if (!options_.async) {
    finish();
    *memory_ = {};  // training needs the memory
  }
  return path;
}

/// An error on any rank drops the save.
void Store::advance_save(SaveAction action) {
  const progress::During saves(progress::Phase::save);
  std::unique_ptr<SaveJob> job = std::move(pending_save_);
  try {
    job->advance(action);
  } catch (const Error& error) {
    if (error.code() == ExitCode::data || error.code() == ExitCode::usage) take_back_attempt();
    throw;
  }
  if (job->state() == SaveJob::State::done) {
    current_path_ = job->path();
  } else {
    pending_save_ = std::move(job);
  }
}

Store::Writer Store::writer() const {
  if (!pending_save_) return {};
  return {.writing = pending_save_->running(), .failed = pending_save_->failed()};
}

void Store::advance(Writer of_any) {
  if (!pending_save_ || (of_any.writing && !of_any.failed)) return;
  const comm::NamedCall call = named("advance");
  advance_save(of_any.failed ? SaveAction::give_up : SaveAction::proceed);
}

void Store::advance() {
  if (!pending_save_) return;
  const comm::NamedCall call = named("advance");
  const std::vector<Writer> all = comm::all_gather_values(world_, writer());
  advance({.writing = std::ranges::any_of(all, &Writer::writing),
           .failed = std::ranges::any_of(all, &Writer::failed)});
}

void Store::finish() {
  if (!pending_save_) return;
  const comm::NamedCall call = named("finish");
  while (pending_save_) advance_save(SaveAction::wait);
}

/// On rank 0. Runs during training, so it calls neither MPI nor HDF5.
void Store::published(std::int64_t step, std::optional<double> metric) {
  run_directory_.check_held();
  retention_->note(step, metric);
  link("latest", step);
  link_best();
  std::vector<std::int64_t> without_file = prune(step);
  without_file.push_back(step);  // an earlier file of this step may have been evaluated
  evaluations_->forget(without_file);
  snapshots_->thin(step);
  attempts_->forget_up_to(step);
  attempt_from_.reset();
}

void Store::link(const std::string& name, std::int64_t step) {
  if (replace_link(directory_ + "/" + name, name_of_step(step))) sync_directory(directory_);
}

void Store::link_best() {
  if (const auto best = retention_->best(steps_in(directory_))) link("best", *best);
}

std::vector<std::int64_t> Store::prune(std::int64_t newest) {
  std::vector<std::int64_t> gone;
  for (const std::int64_t step : retention_->to_remove(steps_in(directory_), newest)) {
    try {
      remove_file(directory_ + "/" + name_of_step(step));
      gone.push_back(step);
    } catch (const Error& error) {
      log_.warning("an old checkpoint stays: {}", error.what());
    }
  }
  return gone;
}

namespace {

/// Runs that may end without a newer checkpoint before a resume skips their checkpoint.
constexpr int max_attempts = 2;

/// With another seed, number of shards or batch a run would silently continue with other samples.
void check_schedule(const FileIndex& index, const DataSchedule& schedule) {
  const Position& stored = index.position;
  const auto refuse = [&](std::string_view what, auto was, auto is) {
    throw UsageError(
        "{}: was saved with {} {}, this run has {}; resume with the same, or start a new run from its "
        "weights",
        index.path, what, was, is);
  };
  if (schedule.shards != 0 && stored.shards != 0 && stored.shards != schedule.shards)
    refuse("shards", stored.shards, schedule.shards);
  if (schedule.shards != 0 && stored.shards != 0 && stored.seed != schedule.seed)
    refuse("seed", stored.seed, schedule.seed);
  if (schedule.samples_per_step != 0 && stored.samples != 0 && stored.step != 0 &&
      (stored.samples % stored.step != 0 || stored.samples / stored.step != schedule.samples_per_step))
    refuse("a global batch of", static_cast<double>(stored.samples) / static_cast<double>(stored.step),
           schedule.samples_per_step);
}

/// The file may have been renamed.
void check_step(const FileIndex& index) {
  const std::int64_t named = step_in_name(file_name_of(index.path));
  if (named == index.position.step) return;
  throw UsageError("{}: holds the state after step {}; rename it to that step, or remove it", index.path,
                   index.position.step);
}

/// The bits of results depend on these; a resume with other values is allowed, with a warning. If the
/// precision or the device differs, the rest does not matter.
std::vector<std::string> changed_environment(const FileIndex& index, const Provenance& now) {
  std::vector<std::string> warnings;
  const auto compare = [&](const char* what, const char* effect = "may differ in the last bits") {
    const auto then = index.provenance.find(what), here = now.find(what);
    if (then == index.provenance.end() || here == now.end() || then->second == here->second) return;
    if (then->second.empty() || here->second.empty()) return;  // of a backend that does not report it
    warnings.push_back(fmt::format("{} was written with {} {}, this run has {}: results {}", index.path, what,
                                   then->second, here->second, effect));
  };
  compare("precision", "differ by their rounding");
  if (!warnings.empty()) return warnings;
  compare("device");
  if (!warnings.empty()) return warnings;
  compare("instruction_set");
  compare("math_library");
  compare("threads");
  return warnings;
}

/// The bytes of the file have changed since the save.
struct Damaged {
  std::string text;
};

/// Calls action(), whose DataErrors mean that the file is damaged.
template <class Action>
void reading(const Action& action) {
  try {
    action();
  } catch (const DataError& error) {
    throw Damaged{error.what()};
  }
}

}  // namespace

struct Store::Candidates {
  std::vector<std::int64_t> steps;      ///< in the order in which they are tried
  std::vector<std::int64_t> exhausted;  ///< steps without attempts left; they come last
};

Store::Candidates Store::candidates() {
  const auto counts = from_rank_0(world_, [&] { return attempts_->read(); });
  Candidates candidates;
  for (const std::int64_t step : steps_in(directory_, world_)) {
    const auto count = counts.find(step);
    const bool exhausted = count != counts.end() && count->second >= max_attempts;
    (exhausted ? candidates.exhausted : candidates.steps).push_back(step);
  }
  candidates.steps.insert(candidates.steps.end(), candidates.exhausted.begin(), candidates.exhausted.end());
  return candidates;
}

std::int64_t Store::resume_state_dict(const StateDict& state_dict) {
  const progress::During loads(progress::Phase::load);
  const comm::NamedCall call = named("resume", names_of(state_dict));
  finish();
  const Candidates candidates = this->candidates();
  std::vector<std::string> broken;
  std::string reasons;
  for (const std::int64_t step : candidates.steps) {
    const std::string path = directory_ + "/" + name_of_step(step);
    try {
      load(path, state_dict);
    } catch (const Damaged& damage) {
      if (world_.rank() == 0)
        log_.warning("a checkpoint is broken, trying the previous one: {}", damage.text);
      broken.push_back(path);
      reasons += (reasons.empty() ? "" : "; ") + damage.text;
      continue;
    }
    for (const std::int64_t other : candidates.exhausted) {
      if (other <= step || world_.rank() != 0) continue;
      log_.warning(
          "{0}/{1}: skipped in favour of {2}: {3} starts from it ended before a newer save (remove "
          "{0}/starts to try it again)",
          directory_, name_of_step(other), name_of_step(step), max_attempts);
    }
    if (!run_directory_.is_read_only()) started_from(step, broken);
    current_path_ = path;
    return step;
  }
  if (!broken.empty()) throw DataError("{}: no checkpoint is complete: {}", directory_, reasons);
  snapshots_->drop_after(0);
  return 0;
}

/// Throws Damaged.
void Store::load(const std::string& path, const StateDict& state_dict) {
  FileIndex index;
  reading([&] { index = read_index(path, world_); });
  comm::run_on_all(world_, [&] {
    check_step(index);
    check_schedule(index, schedule(state_dict.run));
  });
  load(index, state_dict);
  if (!index.position.knows_shards() && schedule(state_dict.run).shards != 0)
    log_.info("{}: has no shards, batch and seed, which are therefore not checked", path);
}

void Store::fork_state_dict(const FileIndex& index, const StateDict& state_dict) {
  const comm::NamedCall call = named("fork_state_dict", names_of(state_dict));
  finish();
  try {
    load(index, state_dict);
  } catch (const Damaged& damage) {
    throw DataError("{}", damage.text);
  }
  current_path_ = index.file->path();
}

/// Throws Damaged.
void Store::load(const FileIndex& index, const StateDict& state_dict) {
  LoadPlan plan;
  comm::run_on_all(world_, [&] {
    plan = plan_load(index, state_dict, {.strict = options_.strict, .narrow = options_.narrow});
  });
  reading([&] { read_tensors(index, plan, world_); });
  comm::run_on_all(world_, [&] { finish_load(plan); });
  if (const auto layout = index.provenance.find(weights_layout_key); layout != index.provenance.end())
    note({*layout});
  for (std::string& warning : changed_environment(index, provenance_))
    plan.warnings.push_back(std::move(warning));
  if (world_.rank() == 0) {
    for (const std::string& warning : plan.warnings) log_.warning("{}", warning);
  }
}

/// Called after a successful load: renames damaged files, updates links and counts the attempt.
void Store::started_from(std::int64_t step, const std::vector<std::string>& broken) {
  comm::run_on_all(world_, [&] {
    if (world_.rank() != 0) return;
    run_directory_.check_held();
    for (const std::string& path : broken) {
      std::string aside = path + ".bad";
      for (int number = 2; exists(aside); ++number) aside = fmt::format("{}.bad{}", path, number);
      rename_file(path, aside);
      log_.warning("{}: broken, renamed to {}", path, file_name_of(aside));
    }
    if (!broken.empty()) {
      sync_directory(directory_);
      link("latest", step);
      link_best();
    }
    evaluations_->forget_after(step);
    take_back_attempt();  // of an earlier call
    attempts_->add(step);
    attempt_from_ = step;
  });
  snapshots_->drop_after(step);
}

std::optional<FileIndex> Store::newest() {
  const comm::NamedCall call = named("newest");
  std::string broken;
  for (const std::int64_t step : steps_in(directory_, world_)) {
    try {
      return read_index(directory_ + "/" + name_of_step(step), world_);
    } catch (const DataError& error) {
      broken += (broken.empty() ? "" : "; ") + std::string(error.what());
    }
  }
  if (!broken.empty()) throw DataError("{}: no checkpoint is complete: {}", directory_, broken);
  return std::nullopt;
}

}  // namespace lockstep::checkpoint
