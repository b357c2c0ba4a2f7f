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

/// Runs `start`, and returns its exit code or throws its error on. The process that `writes` replaces the
/// record of the last start by an open one first, which takes the space that the end needs, and writes that
/// of this start at the end, also on a full disk; a record that cannot be written is a warning. It stays open
/// if the process is killed. There is none if the directory holds no run or another run has taken it over.
/// `start` sets its argument when it begins to change the run; a UsageError before is a refusal, which leaves
/// the record of an orderly ending, and adds the reason.
ExitCode with_exit_record(checkpoint::RunDirectory& run, bool writes,
                          const std::function<Ending(bool&)>& start);

/// For a process that is about to end without with_exit_record(): the record of the run that it is in, if
/// any. Any rank may write it. Takes `most_s` at most, also where storage hangs: then nothing may be written.
void record_sudden_end(const std::string& why, double most_s) noexcept;

/// The record in the run directory `run`; none if there is none that can be read, or it is open.
std::optional<Ending> read_exit_record(const std::string& run);
/// Where it is.
std::string exit_record_path(const std::string& run);

}  // namespace lockstep::train
