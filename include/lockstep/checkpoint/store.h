// Store: the checkpoints of a run: save, prune, and resume from the newest whole one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/log.h"
#include "lockstep/checkpoint/contents.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/checkpoint/load.h"
#include "lockstep/checkpoint/run_directory.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

class ProfileSnapshots;

/// What the place in a run follows from, given a step. Zeros: not known, not checked.
struct Stream {
  std::uint64_t seed = 0;
  std::int64_t shards = 0;
  std::int64_t samples_per_step = 0;   ///< the global batch
  std::int64_t samples_per_epoch = 0;  ///< of the data set

  Position at(std::int64_t step) const;
};

struct StoreOptions {
  Stream stream = {};
  std::string config = {};     ///< stored with every checkpoint
  Provenance provenance = {};  ///< added to provenance_of(communicator)
  int keep = 2;                ///< newest checkpoints kept; 0 keeps all
  bool strict = true;          ///< see LoadOptions
  bool narrow = false;         ///< see LoadOptions
};

/// RUN/checkpoints/step-000000500.h5 ... and `latest`, a link to the newest. All methods are collective.
///
/// With power-function averages (EmaProfile::power) each save also leaves RUN/ema/step-000000500.h5, from
/// which averages of other widths can be made after training (reconstruct_ema). These stay when checkpoints
/// go, but for neighbours closer than 1/32 of their step; a resume removes those of later steps.
class Store {
 public:
  /// Makes and locks the run directory (see RunDirectory), and removes what a save that was cut off left
  /// behind.
  Store(const std::string& run_directory, comm::Communicator& communicator, StoreOptions options = {});
  /// Uses a directory that is locked already and outlives the store.
  Store(RunDirectory& run_directory, comm::Communicator& communicator, StoreOptions options = {});
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// Saves models, optimizers and EMAs, in any order and any subset, as the state after `step` steps. When it
  /// returns, the file is whole and durable, `latest` points to it, and older ones beyond `keep` are gone.
  /// Returns its path. Errors: save_file; FailureError if another run has taken the directory over.
  template <class... Parts>
  std::string save(std::int64_t step, Parts&&... parts) {
    Contents contents;
    (add(contents, parts), ...);
    return save_contents(step, std::move(contents));
  }

  /// Loads the newest whole checkpoint into models, optimizers and EMAs, and returns the next step; 0,
  /// touching nothing, if the run has none. A broken one is named in a warning, and the one before is taken.
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

  /// The index of the newest checkpoint that has a right one (its tensors are not read); none if there is
  /// none.
  std::optional<FileIndex> newest();

  /// The file that resume loaded or save wrote last; empty before.
  const std::string& current_path() const { return current_path_; }
  const std::string& directory() const { return directory_; }

 private:
  void publish(const std::string& name);
  void prune(std::int64_t step);

  std::unique_ptr<RunDirectory> own_run_directory_;  // of the first constructor
  RunDirectory& run_directory_;
  std::string directory_;
  comm::Communicator& communicator_;
  StoreOptions options_;
  Log log_;
  std::unique_ptr<ProfileSnapshots> snapshots_;
  std::string current_path_;
};

}  // namespace lockstep::checkpoint
