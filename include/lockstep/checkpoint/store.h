// Store: the checkpoints of a run: save, prune, and resume from the newest whole one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/checkpoint/contents.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/checkpoint/run_directory.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

class AttemptCounter;
class Evaluations;
class ProfileSnapshots;
class Retention;
class SaveJob;
enum class SaveAction;
struct SaveMemory;

/// From a step to the position in a run. Zeros: not known, not checked.
struct DataSchedule {
  std::uint64_t seed = 0;
  std::int64_t shards = 0;
  std::int64_t samples_per_step = 0;   ///< the global batch
  std::int64_t samples_per_epoch = 0;  ///< of the data set

  Position at(std::int64_t step) const;
};

struct StoreOptions {
  DataSchedule schedule = {};
  std::string config = {};     ///< stored with every checkpoint
  Provenance provenance = {};  ///< added to provenance_of(communicator)
  int keep = 2;                ///< newest checkpoints kept; 0 keeps all
  /// Name of one of Contents::metrics ("eval_accuracy"): the best checkpoint by it is kept as well, and
  /// `best` points to it. More is better for names that end in "accuracy", less for others.
  std::string keep_best = {};
  bool async = false;             ///< worker threads write while training continues
  bool strict = true;             ///< see LoadOptions
  bool narrow = false;            ///< see LoadOptions
  bool allow_non_finite = false;  ///< see SaveOptions
};

/// RUN/checkpoints/step-000000500.h5 ... and `latest`, a link to the newest. All methods are collective, but
/// those that say otherwise.
///
/// With StoreOptions::async a save returns once each rank has copied its share of the bytes (memory that the
/// store keeps); a thread of each rank, which calls neither MPI nor HDF5, writes them while training
/// continues. Somebody has to move it on, once a step is best, and to finish() it before the end:
///
///     const auto writer = store.writer();                                              // before a step
///     replicas.request({.saving = writer.writing, .save_failed = writer.failed});
///     store.advance({result.requests.saving, result.requests.save_failed});            // with its result
///
/// or store.advance(), which asks the ranks by itself. What a writer failed with is thrown by the next of
/// these, the same on every rank. At most one save is under way; another waits for it first.
///
/// With power-function averages (EmaProfile::power) each save also leaves RUN/ema/step-000000500.h5, from
/// which averages of other widths can be made after training (reconstruct_ema). These stay when checkpoints
/// go, but for neighbours closer than 1/32 of their step; a resume removes those of later steps.
class Store {
 public:
  /// Makes and locks the run directory (see RunDirectory), and removes what a save that was cut off left
  /// behind.
  Store(const std::string& run_directory, comm::HostGroup& communicator, StoreOptions options = {});
  /// Uses a directory that is locked already and outlives the store.
  Store(RunDirectory& run_directory, comm::HostGroup& communicator, StoreOptions options = {});
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// Saves models, optimizers and EMAs, in any order and any subset, as the state after `step` steps. When it
  /// is done, the file is whole and durable, `latest` points to it, and older ones beyond `keep` are gone:
  /// when it returns, or with async when saving() has turned false. Returns its path. Errors: save_file;
  /// FailureError if another run has taken the directory over.
  template <class... Parts>
  std::string save(std::int64_t step, Parts&&... parts) {
    Contents contents;
    (add(contents, parts), ...);
    return save_contents(step, std::move(contents));
  }

  /// Loads the newest whole checkpoint into models, optimizers and EMAs, and returns the next step; 0,
  /// touching nothing, if the run has none. A broken one is named in a warning, and the one before is taken.
  /// What is broken gets ".bad" behind its name then; what only cannot be read now (busy, of a newer version)
  /// is an error. One from which two starts have ended (killed, failed) before anything newer was saved is
  /// passed over as well, in a warning, if there is another.
  /// DataError if none is whole, or if the newest whole one does not fit (see load_file); UsageError if it
  /// was made with another seed or number of shards.
  template <class... Parts>
  std::int64_t resume(Parts&&... parts) {
    Contents contents;
    (add(contents, parts), ...);
    return resume_contents(contents);
  }

  /// The same from lists made by the caller; position, config and provenance are filled in from the options.
  std::string save_contents(std::int64_t step, Contents contents);
  std::int64_t resume_contents(const Contents& contents);

  /// Facts for the provenance of all that is saved from now on, such as LoadReport::provenance. A run that is
  /// resumed keeps `weights_layout`. Not collective.
  void note(const Provenance& facts);

  /// A save is under way: the same on every rank. Not collective.
  bool saving() const { return pending_save_ != nullptr; }
  /// What a rank has to say about it: its writer is at work, its writer has failed.
  struct Writer {
    bool writing = false;
    bool failed = false;
  };
  /// This rank's. Not collective.
  Writer writer() const;
  /// Moves the save on, given what is true of any rank. Collective if one is under way and nobody writes or
  /// somebody failed (then the save is given up, and the failure thrown); nothing otherwise.
  void advance(Writer of_any);
  /// The same, asking the ranks.
  void advance();
  /// Waits for the save under way, and sees it through.
  void finish();

  /// Records the metrics of an evaluation of the checkpoint of `step`, which may have been saved before, in a
  /// file next to the checkpoints. Moves `best`, and removes a checkpoint that is no longer the best. Waits
  /// for a pending save. Collective.
  void note_metrics(std::int64_t step, const std::map<std::string, double>& metrics);
  /// Is the metric of the checkpoint of `step` known, from that record or from the file itself? Waits for a
  /// save that is under way. Collective.
  bool knows_metric(std::int64_t step, const std::string& metric);
  /// From now on stored with every checkpoint: StoreOptions::config. Not collective, but the same everywhere.
  void set_config(const std::string& text) { options_.config = text; }

  /// The index of the newest checkpoint that has a right one (its tensors are not read); none if there is
  /// none.
  std::optional<FileIndex> newest();

  /// The file that resume loaded or save wrote last; empty before.
  const std::string& current_path() const { return current_path_; }
  const std::string& directory() const { return directory_; }

 private:
  struct Candidates;  // to resume from

  Store(RunDirectory* run_directory, std::unique_ptr<RunDirectory> own, comm::HostGroup& communicator,
        StoreOptions options);
  Contents completed(std::int64_t step, Contents contents) const;
  void advance_save(SaveAction action);
  void take_back_attempt();
  void published(std::int64_t step, std::optional<double> metric);
  std::optional<double> metric_of(std::int64_t step, const std::string& metric) const;
  void link(const std::string& name, std::int64_t step);
  void link_best();
  std::vector<std::int64_t> prune(std::int64_t newest);

  Candidates candidates();
  void load(const std::string& path, const Contents& contents);
  void started_from(std::int64_t step, const std::vector<std::string>& broken);

  std::unique_ptr<RunDirectory> own_run_directory_;  // of the first constructor
  RunDirectory& run_directory_;
  std::string directory_;
  comm::HostGroup& communicator_;
  StoreOptions options_;
  Provenance provenance_;  // of this run
  Log log_;
  std::unique_ptr<ProfileSnapshots> snapshots_;
  std::unique_ptr<Retention> retention_;
  std::unique_ptr<Evaluations> evaluations_;
  std::unique_ptr<AttemptCounter> attempts_;
  std::optional<std::int64_t> attempt_from_;  // taken back if this run ends in order
  int exceptions_at_start_;
  std::unique_ptr<SaveMemory> memory_;
  std::unique_ptr<SaveJob> pending_save_;
  std::string current_path_;
};

}  // namespace lockstep::checkpoint
