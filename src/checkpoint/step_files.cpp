#include "checkpoint/step_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>
#include <system_error>

#include "base/files.h"
#include "lockstep/base/system_error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::checkpoint {
namespace {

/// Of files and links that are not named after a step.
const std::set<std::string_view> small_drafts{".latest.tmp", ".best.tmp", ".starts.tmp",
                                              ".evaluations.json.tmp"};

constexpr std::string_view name_prefix = "step-", name_suffix = ".h5";

/// ".step-000000500.h5.MARK.tmp", with or without the mark of the start that wrote it.
bool is_draft(std::string_view name) {
  constexpr std::string_view suffix = ".tmp";
  if (!name.starts_with('.') || !name.ends_with(suffix)) return false;
  name.remove_prefix(1);
  name.remove_suffix(std::min(name.size(), suffix.size()));
  const std::size_t last_dot = std::min(name.rfind('.'), name.size());
  return step_in_name(name) >= 0 || step_in_name(name.substr(0, last_dot)) >= 0;
}

std::vector<std::string> list(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> names;
  std::filesystem::directory_iterator entries(directory, error);
  if (error == std::errc::no_such_file_or_directory) return names;
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    names.push_back(entries->path().filename().string());
  }
  if (error) throw_system_error(error.value(), directory, "list the directory");
  return names;
}

}  // namespace

std::string name_of_step(std::int64_t step) {
  return fmt::format("{}{:09d}{}", name_prefix, step, name_suffix);
}

std::int64_t step_in_name(std::string_view name) {
  if (!name.starts_with(name_prefix) || !name.ends_with(name_suffix)) return -1;
  name.remove_prefix(name_prefix.size());
  name.remove_suffix(std::min(name.size(), name_suffix.size()));
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  return error == std::errc() && end == name.data() + name.size() && name.size() >= 9 ? step : -1;
}

std::vector<std::int64_t> steps_in(const std::string& directory) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : list(directory)) {
    if (const std::int64_t step = step_in_name(name); step >= 0) steps.push_back(step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

std::vector<std::int64_t> steps_in(const std::string& directory, comm::Communicator& communicator) {
  std::vector<std::int64_t> steps;
  comm::together(communicator, [&] {
    if (communicator.rank() == 0) steps = steps_in(directory);
  });
  std::uint64_t count = steps.size();
  communicator.broadcast(&count, sizeof count, 0);
  steps.resize(count);
  communicator.broadcast(steps.data(), count * sizeof(std::int64_t), 0);
  return steps;
}

void remove_drafts(const std::string& directory, const Log& log) {
  for (const std::string& name : list(directory)) {
    if (!small_drafts.contains(name) && !is_draft(name)) continue;
    log.info("{}/{}: removed, left behind by a save that was cut off", directory, name);
    remove_file(directory + "/" + name);
  }
}

}  // namespace lockstep::checkpoint
