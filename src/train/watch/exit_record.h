// Writes RUN/exit.json: how the last start of a run ended. `lockstep status` and `lockstep report` read it.
#pragma once

#include <functional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/run_directory.h"
#include "report/run_log.h"

namespace lockstep::train {

using report::Ending;
using report::exit_record_path;
using report::read_exit_record;

/// Runs `start`, and returns its exit code or throws its error on. The process that `writes` replaces the
/// record of the last start by an open one first, which takes the space that the end needs, and writes that
/// of this start at the end, also on a full disk; a record that cannot be written is a warning. It stays open
/// if the process is killed. There is none if the directory holds no run or another run has taken it over.
/// `start` sets its argument when it begins to change the run; a UsageError before is a refusal, which leaves
/// the record of an orderly ending, and adds the reason.
ExitCode with_exit_record(checkpoint::RunDirectory& run, bool writes,
                          const std::function<Ending(bool&)>& start);

/// For a process that is about to end without with_exit_record(): the record of the run that it is in, if
/// any. Any rank may write it. Takes `max_s` at most, also where storage hangs: then nothing may be written.
void record_sudden_end(const std::string& why, double max_s) noexcept;

}  // namespace lockstep::train
