// Private to the module: files named after a step, step-000000500.h5, in directories of a run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/checkpoint/contents.h"
#include "lockstep/checkpoint/run_directory.h"
#include "lockstep/checkpoint/save.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

std::string name_of_step(std::int64_t step);
/// Of a name of such a file; -1 of any other.
std::int64_t step_in_name(std::string_view name);

/// Steps that have a file, newest first; none if there is no such directory.
std::vector<std::int64_t> steps_in(const std::string& directory);
/// The same on every rank, as rank 0 sees it. Collective.
std::vector<std::int64_t> steps_in(const std::string& directory, comm::HostGroup& communicator);

/// Removes what a save that was cut off left behind, and says so.
void remove_drafts(const std::string& directory, const Log& log);

class FileWriter;

/// Groups of power-function averages: "ema/sigma_rel=0.05".
bool is_profile_group(std::string_view path);

/// RUN/ema/step-000000500.h5: the power-function EMA weights of a step, kept when checkpoints are removed,
/// because EMA weights of other widths are made from them after training (ema_reconstruction.h).
///
/// A snapshot holds /ema/sigma_rel=.../NAME, what is averaged only; /model/NAME, the other buffers of the
/// model; position, configuration and provenance as a checkpoint. It is whole or absent as a checkpoint is.
class ProfileSnapshots {
 public:
  /// Removes what a save that was cut off left behind. Collective.
  ProfileSnapshots(RunDirectory& run_directory, comm::HostGroup& communicator);

  /// Begins to save the snapshot that belongs to a checkpoint of these contents; none if they hold no
  /// power-function averages. Collective. Errors: save_file.
  std::unique_ptr<FileWriter> begin(const Contents& checkpoint, const SaveOptions& options);
  /// Of neighbours closer than 1/32 of their step the later one goes, but never the newest: a profile is as
  /// wide as a part of the time that is past, so snapshots may get rarer with it. On rank 0 only.
  void thin(std::int64_t newest_step);
  /// A run that continues after this step takes another course than the one that made later snapshots.
  /// Collective.
  void drop_after(std::int64_t step);

 private:
  RunDirectory& run_directory_;
  comm::HostGroup& communicator_;
  Log log_;
};

}  // namespace lockstep::checkpoint
