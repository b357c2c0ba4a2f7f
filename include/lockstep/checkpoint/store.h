// Store: the checkpoints of a run: save, prune, and resume from the newest complete one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/base/option.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/checkpoint/run_directory.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

class AttemptCounter;
class EvaluationRecords;
class ProfileSnapshots;
class Retention;
class SaveJob;
enum class SaveAction;
struct SaveMemory;

/// Computes the position of a run from its step. Zeros: unknown.
struct DataSchedule {
  std::uint64_t seed = 0;              ///< of the run
  std::int64_t shards = 0;             ///< number of equal parts of a global batch
  std::int64_t samples_per_step = 0;   ///< the global batch
  std::int64_t samples_per_epoch = 0;  ///< of the data set

  Position at(std::int64_t step) const;  ///< the position after `step` updates
};

/// Options of a Store.
struct StoreOptions {
  DataSchedule schedule = {};  ///< completed from the context and from the optimizer's source
  std::string config = {};     ///< stored with every checkpoint
  Provenance provenance = {};  ///< added to provenance_of(world)
  int keep = 2;                ///< number of newest checkpoints to keep; 0: all
  /// Name of one of StateDict::metrics ("eval_accuracy"): keeps the best checkpoint by it as well, and links
  /// `best` to it.
  std::string keep_best = {};
  /// Whether the largest value is the best; none: only for a name that ends in "accuracy".
  std::optional<bool> more_is_better = {};
  bool async = false;             ///< worker threads write during training
  bool strict = true;             ///< see LoadOptions
  bool narrow = false;            ///< see LoadOptions
  bool allow_non_finite = false;  ///< see SaveOptions

  /// Keys of a configuration's [checkpoint]: keep, keep_best, async, load (strict or not) and narrow.
  static std::vector<Option<StoreOptions>> options();
};

/// RUN/checkpoints/step-000000500.h5 ... and `latest`, a link to the newest. All methods are collective
/// except where they say otherwise.
///
/// With StoreOptions::async a save returns once each rank has copied its share of the bytes (to memory of the
/// store); a thread of each rank, which calls neither MPI nor HDF5, writes them during training. The caller
/// advances the pending save, best once a step, and calls finish() before the end:
///
///     const auto writer = store.writer();                                              // before a step
///     replicas.request({.saving = writer.writing, .save_failed = writer.failed});
///     store.advance({result.requests.saving, result.requests.save_failed});            // with its result
/// or store.advance(), which gathers these states from the ranks. The next of these calls throws the error of
/// a failed writer, on every rank. At most one save is pending; another one first waits for it.
///
/// With power-function EMA weights (EmaProfile::power) each save also writes RUN/ema/step-000000500.h5, from
/// which reconstruct_ema() computes EMA weights of other widths after training. These snapshots stay when
/// checkpoints are removed, except for neighbours closer than 1/32 of their step; a resume removes those of
/// later steps.
class Store {
 public:
  /// Creates and locks the run directory (see RunDirectory), and removes temporary files of interrupted
  /// saves.
  Store(const std::string& run_directory, comm::HostGroup& world, StoreOptions options = {});
  /// The same with the shape of the run in the context (Context::run()).
  Store(const std::string& run_directory, Context& context, StoreOptions options = {});
  /// Uses a locked directory, which must outlive the store. If it is read-only, a resume changes nothing on
  /// storage: no name, link or count.
  Store(RunDirectory& run_directory, comm::HostGroup& world, StoreOptions options = {});
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// Saves models, optimizers, EMAs and the normalisation of data sets, in any order and any subset, as
  /// the state after `step` steps. After the save the file is complete and on storage, `latest` points to it,
  /// and older ones beyond `keep` are removed: when this returns, or with async when saving() is false.
  /// Returns the path. The first save compares the ranks' values by digest. Errors: save_file; FailureError
  /// if another run has taken the directory over; TrainingError, naming the tensors and the ranks, if they
  /// hold different values; UsageError while EMA weights are swapped in.
  template <class... Parts>
  std::string save(std::int64_t step, Parts&&... parts) {
    StateDict state_dict;
    (add(state_dict, parts), ...);
    return save_state_dict(step, std::move(state_dict));
  }

  /// Loads the newest complete checkpoint into the arguments, which are those of save(), and returns the next
  /// step; 0, without any change, if the run has no checkpoint. A damaged file gets the name "NAME.bad", with
  /// a warning, and the one before it is loaded; a file that cannot be read now (busy, of a newer version) is
  /// an error. A checkpoint from which two runs were killed or failed before they saved a newer one is
  /// skipped with a warning, if there is another. DataError if none is complete, or if the newest complete
  /// one does not match (see load_file).
  /// UsageError if the checkpoint has another number of shards, global batch or seed than the run. Those of
  /// the run come from the context, from StoreOptions::schedule and from the DataParallel of the optimizer
  /// among `parts`, which must agree. A checkpoint without them (of weights only) is not checked, with a log
  /// line.
  template <class... Parts>
  std::int64_t resume(Parts&&... parts) {
    StateDict state_dict;
    (add(state_dict, parts), ...);
    return resume_state_dict(state_dict);
  }

  /// The same for a state dict; position, config and provenance come from the options.
  std::string save_state_dict(std::int64_t step, StateDict state_dict);
  /// The same for a state dict of the caller; returns the next step, 0 for a new run.
  std::int64_t resume_state_dict(const StateDict& state_dict);
  /// Loads a checkpoint of another run, with any seed, shards and batch. The next save records it as its
  /// parent. DataError as load_file.
  void fork_state_dict(const FileIndex& index, const StateDict& state_dict);

  /// Adds facts to the provenance of all later saves, such as LoadReport::provenance. A resumed run keeps
  /// `weights_layout`. Not collective.
  void note(const Provenance& facts);

  /// Whether a save is pending: the same on every rank. Not collective.
  bool saving() const { return pending_save_ != nullptr; }
  /// The state of a rank's writer in a pending save.
  struct Writer {
    bool writing = false;  ///< a save is in progress
    bool failed = false;   ///< a save has failed; finish() throws its error
  };
  /// The state of this rank's writer. Not collective.
  Writer writer() const;
  /// Advances the pending save, given the states of all ranks' writers combined by "or". Collective if a save
  /// is pending and no rank writes or one has failed (then the save is dropped, and the error thrown); a
  /// no-op otherwise.
  void advance(Writer of_any);
  /// The same, but gathers the states itself.
  void advance();
  /// Waits until the pending save is complete.
  void finish();

  /// Records the metrics of an evaluation of the checkpoint of `step` in a file next to the checkpoints.
  /// Updates the link `best`, and removes a checkpoint that is no longer the best. Waits for a pending save.
  void note_metrics(std::int64_t step, const std::map<std::string, double>& metrics);
  /// The metric of the checkpoint of `step`, from that record or from the checkpoint; none: not known. Waits
  /// for a pending save.
  std::optional<double> find_metric(std::int64_t step, const std::string& metric);
  /// Whether find_metric() finds it.
  bool knows_metric(std::int64_t step, const std::string& metric) {
    return find_metric(step, metric).has_value();
  }
  /// Sets StoreOptions::config for later saves. Not collective, but the same on every rank.
  void set_config(const std::string& text) { options_.config = text; }

  /// Whether a checkpoint of this step with these metrics would be the best by StoreOptions::keep_best,
  /// without those of later steps. The same on every rank, by rank 0's numbers. Collective; finishes a save.
  bool would_be_best(std::int64_t step, const std::map<std::string, double>& metrics);

  /// The index of the newest checkpoint whose index is complete (its tensors are not read); none if the run
  /// has no checkpoint.
  std::optional<FileIndex> newest();

  /// The file that resume loaded or save wrote last; empty if none.
  const std::string& current_path() const { return current_path_; }
  const std::string& directory() const { return directory_; }  ///< the directory of the checkpoints

 private:
  struct Candidates;  // for a resume

  Store(RunDirectory* run_directory, std::unique_ptr<RunDirectory> own, comm::HostGroup& world,
        StoreOptions options);
  comm::NamedCall named(const char* method, const std::string& what = {}) const;
  DataSchedule schedule(const RunShape& of_source) const;
  StateDict completed(std::int64_t step, StateDict state_dict) const;
  void check_alike(const StateDict& state_dict);
  void advance_save(SaveAction action);
  void take_back_attempt();
  void published(std::int64_t step, std::optional<double> metric);
  std::optional<double> metric_of(std::int64_t step, const std::string& metric) const;
  void link(const std::string& name, std::int64_t step);
  void link_best();
  std::vector<std::int64_t> prune(std::int64_t newest);

  Candidates candidates();
  void load(const std::string& path, const StateDict& state_dict);
  void load(const FileIndex& index, const StateDict& state_dict);
  void started_from(std::int64_t step, const std::vector<std::string>& broken);

  std::unique_ptr<RunDirectory> own_run_directory_;  // of the first constructor
  RunDirectory& run_directory_;
  std::string directory_;
  comm::HostGroup& world_;
  StoreOptions options_;
  Provenance provenance_;  // of this run
  Log log_;
  std::unique_ptr<ProfileSnapshots> snapshots_;
  std::unique_ptr<Retention> retention_;
  std::unique_ptr<EvaluationRecords> evaluations_;
  std::unique_ptr<AttemptCounter> attempts_;
  std::optional<std::int64_t> attempt_from_;  // step; undone if this run ends in order
  std::unique_ptr<SaveMemory> memory_;
  std::unique_ptr<SaveJob> pending_save_;
  std::string current_path_;
  bool compared_ = false;  // whether the ranks' values were compared
};

}  // namespace lockstep::checkpoint
