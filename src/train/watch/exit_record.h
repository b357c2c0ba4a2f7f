// Writes RUN/exit.json: the end of the last start of a run. `lockstep status` and `lockstep report` read it.
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

/// Runs `start`, and returns its exit code or rethrows its error. The process that `writes` first replaces
/// the record of the last start by an open one, which reserves the space for the end, and completes it at the
/// end, also on a full disk; a record that cannot be written is a warning. The record stays open if the
/// process is killed. There is none if the directory holds no run or another run has taken it over. `start`
/// sets its argument when it begins to change the run; an earlier UsageError is a refusal, which keeps the
/// record of an orderly end, and adds the reason.
ExitCode with_exit_record(checkpoint::RunDirectory& run, bool writes,
                          const std::function<Ending(bool&)>& start);

/// For the process that started a run, after its end with `code`: records what the run could not, as it was
/// refused or killed before it took the lock. Errors of write_text_atomically().
void complete_exit_record(const std::string& run, int code, const std::string& why);

/// For a process that is about to end without with_exit_record(): writes the record of its run, if any. Any
/// rank may call it. Takes at most `max_s`; on hanging storage it may write nothing.
void record_sudden_end(const std::string& why, double max_s) noexcept;

}  // namespace lockstep::train
