// The state of a run, from its files alone: for `lockstep status` in another terminal or on a login node.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::train {

enum class RunState {
  training,  ///< a process holds the lock: it starts, trains, evaluates or saves
  queued,    ///< its Slurm job was put back into the queue
  stopped,   ///< by a request, with a checkpoint: the same command continues it
  ended,     ///< done, or failed
  lost,      ///< the lock names a process that is dead, or has been silent for long
};
const char* to_string(RunState state);

/// None if the files have no information.
struct RunStatus {
  RunState state = RunState::training;
  std::optional<std::int64_t> step, steps;         ///< done, and in all (train.steps)
  std::optional<int> exit_code;                    ///< of the last start, if it has ended
  std::optional<double> last_line_s;               ///< since the last line of metrics.jsonl was written
  std::optional<double> loss, samples_per_second;  ///< of the last line of a step
  std::optional<double> left_s;  ///< of a run that trains: its steps at the speed of that line
  std::string why;               ///< one phrase
};

/// None if `run` is not the directory of a run. Takes no lock and writes nothing. Throws like OpenFile if a
/// file cannot be opened.
std::optional<RunStatus> run_status(const std::string& run);

}  // namespace lockstep::train
