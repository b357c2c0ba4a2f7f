// Private to the room: RUN/ema/step-000000500.h5: the power-function averages as they stood, kept when
// checkpoints go, because averages of other widths are made of them after training (ema_reconstruction.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "lockstep/base/log.h"
#include "lockstep/checkpoint/contents.h"
#include "lockstep/checkpoint/run_directory.h"
#include "lockstep/checkpoint/save.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

class Saving;

/// Groups of power-function averages: "ema/sigma_rel=0.05".
bool is_profile_group(std::string_view path);

/// A snapshot holds /ema/sigma_rel=.../NAME, what is averaged only; /model/NAME, the other buffers of the
/// model; position, configuration and provenance as a checkpoint. It is whole or absent as a checkpoint is.
class ProfileSnapshots {
 public:
  /// Removes what a save that was cut off left behind. Collective.
  ProfileSnapshots(RunDirectory& run_directory, comm::Communicator& communicator);

  /// Begins to save the snapshot that belongs to a checkpoint of these contents; none if they hold no
  /// power-function averages. Collective. Errors: save_file.
  std::unique_ptr<Saving> begin(const Contents& checkpoint, const SaveOptions& options);
  /// Of neighbours closer than 1/32 of their step the later one goes, but never the newest: a profile is as
  /// wide as a part of the time that is past, so snapshots may get rarer with it. On rank 0 only.
  void thin(std::int64_t newest_step);
  /// A run that goes on after this step takes another course than the one that made later snapshots.
  /// Collective.
  void drop_after(std::int64_t step);

 private:
  RunDirectory& run_directory_;
  comm::Communicator& communicator_;
  Log log_;
};

}  // namespace lockstep::checkpoint
