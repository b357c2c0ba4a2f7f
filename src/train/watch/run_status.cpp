#include "train/watch/run_status.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/text.h"
#include "checkpoint/file_lock.h"
#include "checkpoint/run_files.h"
#include "lockstep/base/error.h"
#include "report/run_log.h"
#include "train/watch/exit_record.h"

namespace lockstep::train {
namespace {

/// The text of a small file; none if it does not exist, as a run may remove it at any time.
std::optional<std::string> text_of(const std::string& path) {
  try {
    return read_text(path);
  } catch (const DataError&) {
    if (exists(path)) throw;
    return std::nullopt;
  }
}

/// Whether the file `path` was written after `other`; false without either.
bool newer_than(const std::string& path, const std::string& other) {
  std::error_code none, no_other;
  const auto written = std::filesystem::last_write_time(path, none);
  return written > std::filesystem::last_write_time(other, no_other) && !none && !no_other;
}

std::optional<std::time_t> changed_at(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return status.st_mtime;
}

/// What the last lines of metrics.jsonl say.
report::RunLog last_lines(const std::string& path) {
  constexpr std::uint64_t max_bytes = 1 << 16;
  report::RunLog log;
  try {
    report::add_lines(log, lines_at_end(OpenFile(path, OpenFile::Mode::read), max_bytes).text);
  } catch (const DataError&) {  // a resume may shorten the file meanwhile: not an error
  }
  return log;
}

std::optional<double> last_value(const report::RunLog& log, std::string_view metric) {
  const report::Series* const series = log.find(metric);
  return series ? std::optional(series->values.back()) : std::nullopt;
}

/// A value of an INI file, whose other lines may be of another program; empty if it has none.
std::string value_in(const std::string& text, std::string_view key) {
  for (const auto& [name, value] : report::keys_of_ini(text))
    if (name == key) return value;
  return "";
}

template <class Number>
void read_number(const std::string& text, std::optional<Number>& number) {
  if (Number value = 0; parse_number(text, value)) number = value;
}

/// The status if there is a lock with this text.
void judge_lock(RunStatus& status, const std::string& run, const std::string& lock,
                const report::RunLog& last, std::time_t now) {
  const checkpoint::LockHolder holder = checkpoint::LockHolder::parse(lock);
  const std::string who = holder.describe();
  const bool alive_here = holder.is_alive_here();
  const bool here = holder.host == checkpoint::LockHolder::this_process().host;
  if (here && !alive_here) {
    status.state = RunState::lost;
    status.why = fmt::format("{} is dead and left its lock; the same command resumes the run", who);
    return;
  }
  const std::time_t locked = changed_at(run + "/lock").value_or(now);
  const std::time_t written = unix_time_of(last.last_time).value_or(0);
  const auto silent_s = static_cast<double>(now - std::max(locked, written));
  // Longer than the usual fault.hang_timeout_s, and than evaluations and saves between lines.
  const double max_silent_s = 600 + 10 * last.longest_interval_s;
  if (!here && silent_s > max_silent_s) {
    status.state = RunState::lost;
    status.why = fmt::format("{} has written no line for {}", who, duration_text(silent_s));
    if (last.longest_interval_s > 0)
      status.why +=
          fmt::format("; it used to write one every {} at least", duration_text(last.longest_interval_s));
    return;
  }
  status.state = RunState::training;
  status.why = who;
  if (written < locked) status.why = "starting: " + who;
  if (exists(run + "/stop"))
    status.why = "asked to stop: " + who;
  else if (exists(run + "/checkpoint"))
    status.why = "asked for a checkpoint: " + who;
}

/// The status without a lock and outside a queue.
void judge_ending(RunStatus& status, const std::optional<Ending>& ending, bool has_config) {
  if (ending) {
    const bool by_request = ending->code == ExitCode::preempted || ending->code == ExitCode::user_stopped;
    status.state = by_request ? RunState::stopped : RunState::ended;
    status.why = ending->why;
    if (!ending->refused.empty()) status.why += "; the last start was refused: " + ending->refused;
  } else if (status.step && status.steps && *status.step >= *status.steps) {
    status.state = RunState::ended;
    status.why = "all steps are done";
  } else {
    status.state = RunState::stopped;
    status.why = has_config
                     ? "no process has its lock, and nothing says how it ended"
                     : "no process has its lock; a program with a loop of its own does not say how it ended";
  }
}

}  // namespace

const char* to_string(RunState state) {
  constexpr std::array words{"training", "queued", "stopped", "ended", "lost"};
  return words[static_cast<std::size_t>(state)];
}

std::optional<RunStatus> run_status(const std::string& run) {
  const std::time_t now = std::time(nullptr);
  // Reads the lock first: a run that ends meanwhile has then written its record, and a starting run is found
  // later.
  const std::optional<std::string> lock = text_of(run + "/lock");
  const std::optional<std::string> config = text_of(run + "/config.ini");
  const std::string metrics = run + "/metrics.jsonl", checkpoints = run + "/checkpoints";
  if (!lock && !config && !exists(metrics) && !exists(checkpoints) && !exists(exit_record_path(run)))
    return std::nullopt;

  RunStatus status;
  const report::RunLog last = last_lines(metrics);
  if (last.lines > 0) status.step = last.last_step;
  status.loss = last_value(last, "loss");
  status.samples_per_second = last_value(last, "samples_per_second");
  if (config) read_number(value_in(*config, "train.steps"), status.steps);
  if (const auto written = unix_time_of(last.last_time))
    status.last_line_s = static_cast<double>(std::max<std::time_t>(0, now - *written));
  // A checkpoint may be newer than the last line, and a program may log none.
  if (const std::vector<std::int64_t> saved = checkpoint::steps_in(checkpoints); !saved.empty())
    status.step = std::max(status.step.value_or(0), saved.front());
  std::optional<Ending> ending = read_exit_record(run);
  // Files that a start has not replaced yet belong to the previous one.
  if (lock && !newer_than(exit_record_path(run), run + "/lock")) ending.reset();
  if (ending && ending->step) status.step = ending->step;
  if (ending) status.exit_code = static_cast<int>(ending->code);

  if (lock) judge_lock(status, run, *lock, last, now);
  const bool alive = lock && checkpoint::LockHolder::parse(*lock).is_alive_here();
  if (lock && ending && !alive)
    judge_ending(status, ending, config.has_value());  // an end without time to release the lock
  if (lock && status.state == RunState::training) {
    if (const auto step_ms = last_value(last, "step_ms"); step_ms && status.steps && status.step)
      status.left_s = static_cast<double>(*status.steps - *status.step) * *step_ms * 1e-3;
    return status;
  }
  // Written by jobs/slurm.sh, which removes it before it starts the ranks again.
  if (const std::optional<std::string> queued = text_of(run + "/queued")) {
    status.state = RunState::queued;
    status.why =
        fmt::format("Slurm job {} was put back into the queue; if squeue has it no more, sbatch it again",
                    value_in(*queued, "job"));
    read_number(value_in(*queued, "exit_code"), status.exit_code);
  } else if (!lock) {
    judge_ending(status, ending, config.has_value());
  }
  return status;
}

}  // namespace lockstep::train
