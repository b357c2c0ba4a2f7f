#include "train/watch/exit_record.h"

#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/output.h"
#include "base/text.h"
#include "lockstep/base/log.h"

namespace lockstep::train {
namespace {

constexpr std::size_t reserved_bytes = 4096;  // a block: a record of this size needs no new one

/// The run of this process, for record_sudden_end(); empty outside with_exit_record().
struct CurrentRun {
  std::string path, lock;  // the directory, and the text of its lock
};
std::mutex current_run_mutex;
CurrentRun current_run;

std::string lock_of(const std::string& run) {
  try {
    return read_text(run + "/lock");
  } catch (const Error&) {  // another run takes over the directory
    return "";
  }
}

/// A text as long as the reserved space, so that it can be overwritten.
std::string text_of(const nlohmann::json& record) {
  std::string text = json_text(record);
  if (text.size() + 1 < reserved_bytes) text.resize(reserved_bytes - 1, ' ');
  return text + "\n";
}

std::string text_of(const Ending& ending) {
  constexpr std::size_t max_why = 1'000;
  nlohmann::json record = {{"exit_code", static_cast<int>(ending.code)},
                           {"step", nullptr},
                           {"why", on_one_line(ending.why).substr(0, max_why)},
                           {"time", utc_now()}};
  if (ending.step) record["step"] = *ending.step;
  if (!ending.refused.empty()) record["refused"] = on_one_line(ending.refused).substr(0, max_why);
  return text_of(record);
}

/// Overwrites the existing record if the storage is full.
void write_over(const std::string& path, const std::string& text) {
  try {
    write_text_atomically(path, text);
  } catch (const Error&) {
    if (!exists(path)) throw;
    OpenFile file(path, OpenFile::Mode::read_write_or_create);
    if (file.size() != text.size()) throw;
    file.write_at(0, text.data(), text.size());
    file.sync();
  }
}

void write_record(const checkpoint::RunDirectory& run, const Ending& ending) noexcept {
  const std::string path = exit_record_path(run.path());
  try {
    if (!exists(run.config_path())) return remove_quietly(path);
    run.check_held();
    write_over(path, text_of(ending));
  } catch (const std::exception& error) {
    Log().warning("lockstep status will not know how this run ended: {}", error.what());
  }
}

/// The open record, or none if it cannot be written.
void open_record(const std::string& path) {
  try {
    write_text_atomically(path, text_of(nlohmann::json{{"exit_code", nullptr}}));
  } catch (const Error&) {
    remove_quietly(path);
  }
}

/// Sets current_run during its life.
class InRun {
 public:
  explicit InRun(const checkpoint::RunDirectory& run) {
    const std::lock_guard guard(current_run_mutex);
    if (!run.is_read_only()) current_run = {.path = run.path(), .lock = lock_of(run.path())};
  }
  ~InRun() {
    const std::lock_guard guard(current_run_mutex);
    current_run = {};
  }
  InRun(const InRun&) = delete;
  InRun& operator=(const InRun&) = delete;
};

}  // namespace

ExitCode with_exit_record(checkpoint::RunDirectory& run, bool writes,
                          const std::function<Ending(bool&)>& start) {
  const std::optional<Ending> last = writes ? read_exit_record(run.path()) : std::nullopt;
  if (writes) open_record(exit_record_path(run.path()));
  const InRun in_run(run);
  Ending ending{.code = ExitCode::failure};
  bool begun = false;
  try {
    ending = start(begun);
  } catch (const Error& error) {
    ending = {.code = error.code(), .why = error.what()};
    // A refused start changes nothing.
    if (error.code() == ExitCode::usage && !begun && last && last->is_orderly())
      ending = {.code = last->code, .step = last->step, .why = last->why, .refused = error.what()};
    if (writes) write_record(run, ending);
    throw;
  } catch (const std::exception& error) {
    if (writes) write_record(run, {.code = ExitCode::failure, .why = error.what()});
    throw;
  }
  if (writes) write_record(run, ending);
  return ending.code;
}

void complete_exit_record(const std::string& run, int code, const std::string& why) {
  std::optional<Ending> last = read_exit_record(run);
  if (exists(run + "/lock") || (last && static_cast<int>(last->code) == code)) return;
  if (last && last->is_orderly())
    last->refused = why;
  else
    last = {.code = static_cast<ExitCode>(code), .why = why};
  write_over(exit_record_path(run), text_of(*last));
}

void record_sudden_end(const std::string& why, double max_s) noexcept {
  try {
    // Not joined, as a write to hanging storage never returns.
    auto done = std::make_shared<std::promise<void>>();
    std::future<void> written = done->get_future();
    std::thread([why, done] {
      try {
        const std::lock_guard guard(current_run_mutex);
        const std::string& run = current_run.path;
        if (!current_run.lock.empty() && exists(run + "/config.ini") && lock_of(run) == current_run.lock) {
          // Has its own name, as rank 0 may write its record, too.
          const std::string path = exit_record_path(run), temporary = run + "/.exit.json.sudden.tmp";
          const std::string text = text_of({.code = ExitCode::failure, .why = why});
          try {
            write_whole(path, temporary, [&](OpenFile& file) { file.write_at(0, text.data(), text.size()); });
          } catch (const Error&) {
            write_over(path, text);
          }
        }
      } catch (const std::exception&) {  // the process ends, and has reported the reason
      }
      done->set_value();
    }).detach();
    written.wait_for(std::chrono::duration<double>(max_s));
  } catch (const std::exception&) {  // no thread
  }
}

}  // namespace lockstep::train
