// Averages after training: a file of one, mixed from the profile snapshots of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

struct EmaReconstructionReport {
  std::string group;                 ///< of the file written: "ema/sigma_rel=0.15"
  std::int64_t step = 0;             ///< as of which
  double error = 0;                  ///< of the profile, see optim::EmaMixture
  std::vector<std::string> sources;  ///< profiles that it is mixed from
  std::int64_t snapshots = 0;        ///< up to `step`
  std::int64_t first_step = 0;       ///< of them
};

/// Writes to `out` what an average of width sigma_rel would hold after `step` steps (none: those of the
/// newest snapshot), from RUN/ema/step-...h5 up to there: a checkpoint with the group
/// ema/sigma_rel=SIGMA_REL of all parameters and buffers, the run's configuration, and what it was made of
/// as provenance `ema_sources`. Parameters and averaged buffers are mixed in float64; other buffers are
/// those of that step. Collective; ranks share the work, with the same bits at any number.
///
/// UsageError if the width is not between 0 and 0.28, there is no snapshot (of that step), or what there is
/// comes no closer to the profile than 10 % (says what would); DataError if a snapshot is damaged or is of
/// averages begun elsewhere; else as save_file.
EmaReconstructionReport reconstruct_ema(const std::string& run_directory, double sigma_rel,
                                        std::optional<std::int64_t> step, const std::string& out,
                                        comm::HostGroup& communicator);

}  // namespace lockstep::checkpoint
