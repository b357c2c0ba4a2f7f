// The start of a run: new, resumed or forked; what a resume may change of its configuration, and the keys
// that depend on the run directory.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/index.h"
#include "lockstep/checkpoint/run_directory.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/train/session.h"
#include "train/config.h"
#include "train/data_sets.h"
#include "train/run/trainer.h"

namespace lockstep::train {

/// The keys whose values differ although a resume may not change them, each as "key: the run has A, the
/// configuration has B".
std::vector<std::string> forbidden_changes(const Config& run, const Config& user_config);

/// A key whose value a resumed or forked run has changed.
struct KeyChange {
  std::string key, before, now;

  std::string to_text() const { return fmt::format("{} = {} (was {})", key, now, before); }
};
std::vector<KeyChange> allowed_changes(const Config& run, const Config& user_config);
/// All changes, as a fork may change every key.
std::vector<KeyChange> all_changes(const Config& run, const Config& user_config);

/// The changes that a start with this configuration makes to a run with the `stored` one, in which shards,
/// threads, steps of epochs and checkpoint.every are resolved.
std::vector<KeyChange> changes_of_start(const Config& stored, Config user_config);

/// The checkpoint that a new run forks from.
struct Fork {
  checkpoint::FileIndex index;
  std::optional<Config> config;  ///< none: the file stores none
};
/// Provenance: the FILE of --fork, and its step.
inline constexpr const char* forked_from_provenance = "forked_from";
inline constexpr const char* forked_step_provenance = "forked_step";

/// Opens the checkpoint of --fork; none without --fork, and if the directory holds this fork already.
/// Collective. UsageError on every rank if the directory holds another run, or if the file has the state of
/// another optimizer; DataError if it has none, or is no checkpoint.
std::optional<Fork> open_fork(const Config& config, checkpoint::RunDirectory& run, const RunOptions& options,
                              comm::HostGroup& world);

/// The line of metrics of a start after `step` (fork: null unless it is a new fork): the kind of start,
/// ranks, nodes, version, and the changes of the configuration.
nlohmann::json line_of_start(const comm::HostGroup& world, std::int64_t step,
                             const std::vector<KeyChange>& changed, const Fork* fork);

/// Provenance: the changes that resumes have made to the configuration.
inline constexpr const char* changes_provenance = "config_changes";

/// The beginning of a start of a run.
struct Beginning {
  std::int64_t step = 0;             ///< finished steps before it
  bool resumes = false;              ///< from a checkpoint of this run
  std::vector<KeyChange> changed{};  ///< by this start, since the checkpoint that it resumes or forks from
  std::string changes{};             ///< by this and earlier starts, for changes_provenance
  std::string patience{};            ///< patience_provenance of the checkpoint that it resumes
};

/// The targets of the load of a start.
struct BegunParts {
  const Config& config;
  DataSets& data;
  Model& model;
  optim::Ema* ema;  ///< null: there is none
  checkpoint::Store& store;
  checkpoint::StateDict state;  ///< the whole state
};

/// Loads the run's newest checkpoint, or the one that it forks from (null: none), or the weights of
/// train.init; without any of them the run is new. The data are normalised by the checkpoint, or measured.
/// Collective. UsageError with `--resume never` if there is a checkpoint; throws like the store.
Beginning begin(BegunParts parts, const RunOptions& options, const Fork* fork, Session& session);

/// train.steps, or the steps of train.epochs passes through `samples` samples. The last step is a full one.
std::int64_t steps_of(const Config& config, std::int64_t samples);

/// The shards of a new run: train.shards, or one for each rank.
int shards_of(const Config& config, const comm::HostGroup& world);
/// UsageError if the shards do not divide the batch, or if there are more ranks than shards.
void check_shards(const Config& config, const comm::HostGroup& world);

/// Resolves the keys that depend on the run directory, the data and the ranks:
///   train.shards      0: the run's; in a new run the world size
///   train.threads     0: the run's
///   train.steps       from train.epochs: the run's if it has the same epochs, otherwise from `samples`
///   samples checkpoint.every  auto: the run's train.init        --resume FILE, otherwise the run's
/// A fork (null: none) takes shards, threads and checkpoint.every from its checkpoint in the same way. Logs
/// the changes of an existing run. Collective. UsageError on every rank if the run directory holds another
/// configuration (each differing key with both values), if both steps and epochs are given, or like
/// check_shards().
void resolve(Config& config, checkpoint::RunDirectory& run, const RunOptions& options, const Fork* fork,
             std::int64_t samples, const comm::HostGroup& world);

/// Call it after resolve(): train.threads = 0 of a new run becomes the result of choose_threads(), which is
/// logged. A session on CPUs gets that many threads, bound if binding_wanted(). Collective.
void resolve_threads(Config& config, Session& session);

}  // namespace lockstep::train
