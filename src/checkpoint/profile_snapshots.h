// Private to the module: the snapshots of power-function EMA weights that a run writes, and which of them it
// keeps. The source also has reconstruct_ema() (convert.h), which reads them.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "lockstep/base/log.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/run_directory.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

class FileWriter;

/// True for groups of power-function EMA weights: "ema/sigma_rel=0.05".
bool is_profile_group(std::string_view path);

/// RUN/ema/step-000000500.h5: the power-function EMA weights of a step. They stay when checkpoints are
/// removed, as EMA weights of other widths are computed from them after training.
///
/// A snapshot holds the averaged tensors, /ema/sigma_rel=.../NAME; the model's other buffers, /model/NAME;
/// and position, configuration and provenance like a checkpoint. Like a checkpoint it is complete or absent.
class ProfileSnapshots {
 public:
  /// Removes temporary files of interrupted saves. Collective.
  ProfileSnapshots(RunDirectory& run_directory, comm::HostGroup& world);

  /// Begins to save the snapshot that belongs to a checkpoint of this state dict; null if it has no
  /// power-function averages. Collective. Errors: save_file.
  std::unique_ptr<FileWriter> begin(const StateDict& checkpoint, const SaveOptions& options);
  /// Removes the later of two neighbours closer than 1/32 of their step, but never the newest: the width of a
  /// profile grows with the step, so snapshots may become rarer. On rank 0 only.
  void thin(std::int64_t newest_step);
  /// Removes snapshots of later steps, which belong to an abandoned trajectory. Collective.
  void drop_after(std::int64_t step);

 private:
  RunDirectory& run_directory_;
  comm::HostGroup& world_;
  Log log_;
};

}  // namespace lockstep::checkpoint
