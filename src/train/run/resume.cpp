#include "train/run/resume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/text.h"
#include "checkpoint/run_files.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/convert.h"
#include "lockstep/comm/agreement.h"
#include "train/components.h"
#include "train/learned_data.h"
#include "train/run/evaluations.h"
#include "train/run/task_state.h"
#include "train/threads.h"

namespace lockstep::train {
namespace {

std::string groups_of(const Config& config) {
  std::string text;
  for (const auto& [number, group] : config.optimizer.groups)
    text += fmt::format("{}: {}; ", number, to_text(group));
  return text;
}

/// The keys whose values differ. Keys of a model, a task or an optimizer are compared only if both have the
/// same one.
std::vector<KeyChange> differing(const Config& run, const Config& user_config, bool may_change) {
  Config common = run;
  if (run.model.type != user_config.model.type) common.model = {};
  if (run.task.type != user_config.task.type) common.task = {};
  if (run.optimizer.algorithm.type != user_config.optimizer.algorithm.type) common.optimizer.algorithm = {};
  if (run.data.kind.type != user_config.data.kind.type) common.data.kind = {};
  std::vector<KeyChange> found;
  for (const Key& key : keys_of(common)) {
    if (key.traits.may_change != may_change) continue;
    KeyChange change{key.name, key.get(run), key.get(user_config)};
    if (change.before != change.now) found.push_back(std::move(change));
  }
  return found;
}

std::vector<KeyChange> unchangeable(const Config& run, const Config& user_config) {
  std::vector<KeyChange> changes = differing(run, user_config, false);
  if (groups_of(run) != groups_of(user_config))
    changes.push_back({"optimizer.group", groups_of(run), groups_of(user_config)});
  return changes;
}

void check_same_run(const Config& stored, const Config& user_config, const std::string& directory) {
  const std::vector<std::string> forbidden = forbidden_changes(stored, user_config);
  if (forbidden.empty()) return;
  throw UsageError(
      "{0}: holds a run of another configuration; start a new one from its weights (--run OTHER --resume "
      "{0}/checkpoints/latest) or from its whole state (--fork instead of --resume), or undo: {1}",
      directory, fmt::join(forbidden, "; "));
}

/// Keys that mean "as the run has it".
void take_unset(Config& config, const Config& stored) {
  if (config.ddp.shards == 0) config.ddp.shards = stored.ddp.shards;
  if (config.train.threads == 0) config.train.threads = stored.train.threads;
  if (config.checkpoint.every == CheckpointConfig::auto_every)
    config.checkpoint.every = stored.checkpoint.every;
}

/// Whether the directory holds the fork of this file, from an earlier start of the same command.
bool holds_fork(checkpoint::RunDirectory& run, const std::string& file, comm::HostGroup& world) {
  const std::optional<checkpoint::FileIndex> newest = checkpoint::Store(run, world).newest();
  if (!newest && !run.stored_config()) return false;
  std::string from;
  if (newest) {
    const auto fact = newest->provenance.find(forked_from_provenance);
    if (fact != newest->provenance.end()) from = fact->second;
  }
  if (from == file) return true;
  if (from.empty())
    throw UsageError("{}: holds a run already; --fork FILE starts a new one: choose another --run",
                     run.path());
  throw UsageError("{}: holds a fork of {}, not of {}; choose another --run", run.path(), from, file);
}

/// A fork continues the state of training, which a file of weights lacks.
void check_state(const checkpoint::FileIndex& index, const Config& config) {
  const checkpoint::GroupEntry* const group = index.group("optimizer");
  if (!group || index.position.step == 0)
    throw DataError("{0}: has no state of training; --resume {0} starts a new run from its weights",
                    index.path);
  const std::string own_algorithm = config.optimizer.algorithm.name();
  for (const auto& [name, value] : group->attributes) {
    const auto* const algorithm = std::get_if<std::string>(&value);
    if (name != "algorithm" || !algorithm || *algorithm == own_algorithm) continue;
    throw UsageError(
        "{0}: holds the state of {1}, but optimizer.name = {2}; --resume {0} starts a new run from its "
        "weights",
        index.path, *algorithm, own_algorithm);
  }
}

/// A run stores its epochs and the number of steps that its first start computed from them.
void resolve_steps(TrainConfig& train, const TrainConfig* stored, std::int64_t steps_of_epochs) {
  const bool same_epochs = stored && train.epochs > 0 && train.epochs == stored->epochs;
  if (train.epochs > 0 && train.steps > 0 && !(same_epochs && train.steps == stored->steps))
    throw UsageError(
        "train.epochs = {:g} and train.steps = {} are both given; give one of them (a run's config.ini has "
        "both: remove its epochs)",
        train.epochs, train.steps);
  if (train.epochs > 0) train.steps = same_epochs ? stored->steps : steps_of_epochs;
}

void check_decay(const Config& config) {
  const std::int64_t decay_steps = config.optimizer.schedule.decay_steps;
  if (decay_steps <= config.train.steps) return;
  throw UsageError(
      "optimizer.decay_steps = {}: the run has only {} (train.steps, or those of train.epochs); give at most "
      "as many",
      decay_steps, pluralized(config.train.steps, "step"));
}

/// Warns if the number of samples changed, as their order depends on it.
void warn_of_other_data(const checkpoint::Provenance& provenance, std::int64_t samples, const Log& log) {
  const auto then = provenance.find(samples_provenance);
  if (then == provenance.end() || then->second == std::to_string(samples)) return;
  log.warning(
      "the run had {} samples to train on, data.train now has {}: it continues with another order of samples "
      "and another held-out part",
      then->second, samples);
}

/// Completes a start after the load of a checkpoint: its data and its history.
void continue_from(const checkpoint::FileIndex& index, BegunParts& parts, Beginning& beginning,
                   Session& session) {
  const checkpoint::Provenance& provenance = index.provenance;
  comm::run_on_all(session.world(), [&] { parts.data.use(learned_from(index)); });
  log_warnings(parts.data, session);
  if (session.world().rank() == 0) warn_of_other_data(provenance, parts.data.train().size(), session.log());
  for (const char* const fact : {forked_from_provenance, forked_step_provenance})
    if (const auto found = provenance.find(fact); found != provenance.end()) parts.store.note({*found});
  std::string& changes = beginning.changes;
  if (const auto before = provenance.find(changes_provenance); before != provenance.end())
    changes = before->second;
  for (const KeyChange& change : beginning.changed)
    changes += fmt::format("{}step {}: {}", changes.empty() ? "" : "; ", beginning.step, change.to_text());
}

/// Fields that the checkpoint does not normalise are measured in the new run's data; a task's state with
/// other shapes begins again.
void begin_fork(const Fork& fork, BegunParts& parts, Beginning& beginning, Session& session) {
  const checkpoint::FileIndex& file = fork.index;
  LearnedFrom from;
  comm::run_on_all(session.world(), [&] { from = learned_from(file); });
  if (std::ranges::any_of(parts.config.data.normalize,
                          [&](const std::string& field) { return !from.normalization(field); }))
    parts.data.measure(session.world());
  if (const std::string other = drop_task_of_other_shape(parts.state, file); !other.empty())
    session.log().info("fork: {}", other);
  parts.store.fork_state_dict(file, parts.state);
  beginning.step = file.position.step;
  if (fork.config) beginning.changed = all_changes(*fork.config, parts.config);
  continue_from(file, parts, beginning, session);
  parts.store.note(
      {{forked_from_provenance, file.path}, {forked_step_provenance, std::to_string(beginning.step)}});
  for (const KeyChange& change : beginning.changed) session.log().info("fork: {}", change.to_text());
  if (!fork.config) session.log().info("fork: {} holds no configuration to compare with", file.path);
  session.log().info("a fork of {}, after step {}", file.path, beginning.step);
}

}  // namespace

std::vector<std::string> forbidden_changes(const Config& run, const Config& user_config) {
  std::vector<std::string> forbidden;
  for (const KeyChange& change : unchangeable(run, user_config))
    forbidden.push_back(fmt::format("{}: the run has '{}', the configuration has '{}'", change.key,
                                    change.before, change.now));
  return forbidden;
}

std::vector<KeyChange> allowed_changes(const Config& run, const Config& user_config) {
  return differing(run, user_config, true);
}

std::vector<KeyChange> all_changes(const Config& run, const Config& user_config) {
  std::vector<KeyChange> changes = unchangeable(run, user_config);
  std::ranges::move(allowed_changes(run, user_config), std::back_inserter(changes));
  return changes;
}

std::vector<KeyChange> changes_of_start(const Config& stored, Config user_config) {
  if (user_config.train.epochs > 0 && user_config.train.epochs == stored.train.epochs)
    user_config.train.steps = stored.train.steps;
  if (user_config.train.init.empty()) user_config.train.init = stored.train.init;
  take_unset(user_config, stored);
  return all_changes(stored, user_config);
}

std::optional<Fork> open_fork(const Config& config, checkpoint::RunDirectory& run, const RunOptions& options,
                              comm::HostGroup& world) {
  if (options.fork.empty() || holds_fork(run, options.fork, world)) return std::nullopt;
  comm::run_on_all(world, [&] {
    if (const std::string_view format = checkpoint::foreign_format(options.fork); !format.empty())
      throw DataError(
          "{0}: is {1}, without a state of training; --resume {0} starts a new run from its weights, "
          "lockstep "
          "convert --optimizer adds the state of PyTorch's AdamW",
          options.fork, format);
  });
  Fork fork{.index = checkpoint::read_index(options.fork, world), .config = {}};
  comm::run_on_all(world, [&] {
    check_state(fork.index, config);
    if (!fork.index.config.empty())
      fork.config = parse_stored_config(fork.index.config, options.fork + " /config", *config.registries);
  });
  return fork;
}

nlohmann::json line_of_start(const comm::HostGroup& world, std::int64_t step,
                             const std::vector<KeyChange>& changed, const Fork* fork) {
  nlohmann::json changes = nlohmann::json::object();
  for (const KeyChange& change : changed) changes[change.key] = {{"from", change.before}, {"to", change.now}};
  nlohmann::json line = {{"start", fork       ? "forked"
                                   : step > 0 ? "resumed"
                                              : "new"},
                         {"step", step},
                         {"time", utc_now()},
                         {"ranks", world.size()},
                         {"nodes", world.topology().nodes()},
                         {"version", checkpoint::provenance_of(world).at("version")},
                         {"changes", changes}};
  if (fork) line[forked_from_provenance] = fork->index.path;
  return line;
}

Beginning begin(BegunParts parts, const RunOptions& options, const Fork* fork, Session& session) {
  auto& [config, data, model, ema, store, state] = parts;
  if (options.resume == "never" && store.newest())
    throw UsageError("{}: holds checkpoints already, and --resume never was given; choose another --run",
                     options.directory);
  Beginning beginning{.step = store.resume_state_dict(state)};
  if (beginning.step > 0) {
    beginning.resumes = true;
    const checkpoint::FileIndex index = checkpoint::read_index(store.current_path(), session.world());
    // Compares with the checkpoint, not config.ini: an earlier start may have changed that and saved nothing.
    if (!index.config.empty())
      beginning.changed = allowed_changes(
          parse_stored_config(index.config, store.current_path() + " /config", *config.registries), config);
    std::erase_if(beginning.changed,
                  [](const KeyChange& change) { return change.before == "auto"; });  // resolved since
    continue_from(index, parts, beginning, session);
    if (const auto counts = index.provenance.find(patience_provenance); counts != index.provenance.end())
      beginning.patience = counts->second;
    session.log().info("going on after step {} ({})", beginning.step, store.current_path());
  } else if (fork) {
    begin_fork(*fork, parts, beginning, session);
  } else {
    data.measure(session.world());
    if (!config.train.init.empty())
      store.note(load_initial_weights(config, data.tokens(), model, ema, session));
    else if (config.train.frozen_statistics)
      session.log().info(
          "note: train.frozen_statistics = true in a run from new weights: batch norms keep mean 0 and "
          "variance 1; set train.init");
  }
  return beginning;
}

std::int64_t steps_of(const Config& config, std::int64_t samples) {
  if (config.train.epochs == 0) return config.train.steps;
  const double steps = std::ceil(config.train.epochs * static_cast<double>(samples) /
                                 static_cast<double>(config.train.global_batch));
  return static_cast<std::int64_t>(std::clamp(steps, 1.0, counts.high));
}

int shards_of(const Config& config, const comm::HostGroup& world) {
  return config.ddp.shards > 0 ? config.ddp.shards : world.size();
}

void check_shards(const Config& config, const comm::HostGroup& world) {
  const int shards = shards_of(config, world);
  if (config.train.global_batch % shards != 0) {
    throw UsageError("train.shards: {} shards do not divide train.global_batch = {}", shards,
                     config.train.global_batch);
  }
  if (const std::int64_t samples = config.train.global_batch / shards; config.ddp.micro_batches > samples) {
    throw UsageError("train.micro_batches = {}: a shard has {}, and cannot be cut into more",
                     config.ddp.micro_batches, pluralized(samples, "sample"));
  }
  if (world.size() > shards) {
    throw UsageError(
        "{} are more than the {} of the run; start at most {} (or a new run with train.shards = {} or more)",
        pluralized(world.size(), "rank"), pluralized(shards, "shard"), pluralized(shards, "rank"),
        world.size());
  }
}

void resolve(Config& config, checkpoint::RunDirectory& run, const RunOptions& options, const Fork* fork,
             std::int64_t samples, const comm::HostGroup& world) {
  const std::optional<std::string> text = run.stored_config();
  const bool from_file = options.resume != "auto" && options.resume != "never";
  if (from_file && !text && !config.train.init.empty() && config.train.init != options.resume) {
    Log(world.rank())
        .info("--resume {0}: the run starts from {0}, not from train.init = {1}", options.resume,
              config.train.init);
  }
  if (from_file) config.train.init = options.resume;
  if (text) {
    const Config stored = parse_stored_config(*text, run.config_path(), *config.registries);
    if (from_file && stored.train.init != options.resume) {
      throw UsageError("{}: holds a run already; --resume FILE starts a new run: choose another --run",
                       run.path());
    }
    resolve_steps(config.train, &stored.train, steps_of(config, samples));
    if (config.train.init.empty()) config.train.init = stored.train.init;
    take_unset(config, stored);
    check_same_run(stored, config, run.path());
    for (const KeyChange& change : allowed_changes(stored, config))
      Log(world.rank()).info("changed: {}", change.to_text());
  } else {
    resolve_steps(config.train, nullptr, steps_of(config, samples));
    if (fork && fork->config) take_unset(config, *fork->config);
    if (config.ddp.shards == 0) config.ddp.shards = world.size();
    if (config.ema.init == "file" && config.train.init.empty() && !fork &&
        checkpoint::steps_in(run.checkpoints_path()).empty())
      throw UsageError("ema.init = file: no file is given to start from; give train.init or --resume FILE");
  }
  check_decay(config);
  check_shards(config, world);
}

void resolve_threads(Config& config, Session& session) {
  const bool on_cpu = session.backend().device() == Device::cpu();
  if (config.train.threads == 0) {
    const ThreadChoice choice = choose_threads(cores_of_ranks(session.world()), session.world().topology());
    config.train.threads = choice.threads;
    if (on_cpu)
      session.log().info("{} a rank, stored with the run ({})", pluralized(choice.threads, "thread"),
                         choice.reason);
  }
  if (!on_cpu) return;
  if (session.backend().threads() != config.train.threads)
    session.use_backend(Device::cpu(), {.threads = config.train.threads});
  if (binding_wanted(session.world(), config.train.bind))
    bind_threads(session.world(), session.log(), config.train.threads);
}

}  // namespace lockstep::train
