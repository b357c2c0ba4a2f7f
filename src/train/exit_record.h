// RUN/exit.json: how the last start of a run ended. `lockstep status` reads it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/run_directory.h"

namespace lockstep::train {

struct Ending {
  ExitCode code = ExitCode::done;
  std::optional<std::int64_t> step{};  ///< steps done; none after an error
  std::string why{};                   ///< one phrase: "preempted after step 120"
  std::string refused{};               ///< why a later start was refused, which changed nothing

  /// Whether the run did what was asked of it.
  bool is_orderly() const {
    return code == ExitCode::done || code == ExitCode::preempted || code == ExitCode::user_stopped;
  }
};

/// Runs `start`, and returns its exit code or throws its error on. The process that `writes` removes the
/// record of the last start first and writes that of this one at the end; a record that cannot be written is
/// a warning. There is none if the process is killed, the directory holds no run, or another run has taken it
/// over. A start that is refused (UsageError) leaves the record of an orderly ending, and adds the reason.
ExitCode with_exit_record(checkpoint::RunDirectory& run, bool writes, const std::function<Ending()>& start);

/// The record in the run directory `run`; none if there is none that can be read.
std::optional<Ending> read_exit_record(const std::string& run);

}  // namespace lockstep::train
