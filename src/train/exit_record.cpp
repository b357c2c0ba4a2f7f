#include "train/exit_record.h"

#include <exception>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/files.h"
#include "base/output.h"
#include "base/text.h"
#include "lockstep/base/log.h"

namespace lockstep::train {
namespace {

std::string path_in(const std::string& run) { return run + "/exit.json"; }

/// `refused`: why the last start was refused, after the one that ended so.
void write_record(const checkpoint::RunDirectory& run, const Ending& ending,
                  const std::string& refused = "") noexcept {
  try {
    if (!exists(run.config_path())) return;
    run.check_held();
    nlohmann::json record = {{"exit_code", static_cast<int>(ending.code)},
                             {"step", nullptr},
                             {"why", on_one_line(ending.why)},
                             {"time", utc_now()}};
    if (ending.step) record["step"] = *ending.step;
    if (!refused.empty()) record["refused"] = on_one_line(refused);
    write_text_atomically(path_in(run.path()), record.dump() + "\n");
  } catch (const std::exception& error) {
    Log().warning("lockstep status will not know how this run ended: {}", error.what());
  }
}

}  // namespace

ExitCode with_exit_record(checkpoint::RunDirectory& run, bool writes, const std::function<Ending()>& start) {
  const std::optional<Ending> last = writes ? read_exit_record(run.path()) : std::nullopt;
  if (writes) remove_quietly(path_in(run.path()));
  Ending ending{.code = ExitCode::failure};
  try {
    ending = start();
  } catch (const UsageError& error) {  // which changed nothing: the run is what it was
    if (writes && last && last->is_orderly())
      write_record(run, *last, error.what());
    else if (writes)
      write_record(run, {.code = error.code(), .why = error.what()});
    throw;
  } catch (const Error& error) {
    if (writes) write_record(run, {.code = error.code(), .why = error.what()});
    throw;
  } catch (const std::exception& error) {
    if (writes) write_record(run, {.code = ExitCode::failure, .why = error.what()});
    throw;
  }
  if (writes) write_record(run, ending);
  return ending.code;
}

std::optional<Ending> read_exit_record(const std::string& run) {
  try {
    const nlohmann::json record = nlohmann::json::parse(read_text(path_in(run)));
    Ending ending{.code = static_cast<ExitCode>(record.at("exit_code").get<int>()),
                  .why = record.at("why").get<std::string>()};
    if (record.at("step").is_number_integer()) ending.step = record["step"].get<std::int64_t>();
    ending.refused = record.value("refused", "");
    return ending;
  } catch (const std::exception&) {  // the file is missing or damaged
    return std::nullopt;
  }
}

}  // namespace lockstep::train
