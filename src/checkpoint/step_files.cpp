#include "checkpoint/step_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/files.h"
#include "checkpoint/file_writer.h"
#include "lockstep/base/error.h"
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

std::vector<std::int64_t> steps_in(const std::string& directory, comm::HostGroup& communicator) {
  std::vector<std::int64_t> steps;
  comm::run_on_all(communicator, [&] {
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

namespace {

/// Neighbours are at least 1/32 of their step apart: 22 are left each time the number of steps doubles.
constexpr std::int64_t density = 32;

Contents snapshot_of(const Contents& checkpoint) {
  Contents snapshot{checkpoint.position, {}, {}, checkpoint.config, checkpoint.provenance};
  snapshot.backend = checkpoint.backend;
  std::set<std::string_view> averaged;
  for (const Section& section : checkpoint.sections) {
    if (!is_profile_group(section.path)) continue;
    Section& kept = snapshot.sections.emplace_back(Section{section.path, {}, section.attributes});
    for (const NamedTensor& tensor : section.tensors) {
      if (!tensor.averaged) continue;
      kept.tensors.push_back(tensor);
      averaged.insert(tensor.name);
    }
  }
  if (snapshot.sections.empty()) return snapshot;
  for (const Section& section : checkpoint.sections) {
    if (section.path != "model") continue;
    Section buffers{"model", {}, {}};
    for (const NamedTensor& tensor : section.tensors) {
      if (!averaged.contains(tensor.name)) buffers.tensors.push_back(tensor);
    }
    if (!buffers.tensors.empty()) snapshot.sections.push_back(std::move(buffers));
  }
  return snapshot;
}

}  // namespace

bool is_profile_group(std::string_view path) { return path.starts_with("ema/sigma_rel="); }

ProfileSnapshots::ProfileSnapshots(RunDirectory& run_directory, comm::HostGroup& communicator)
    : run_directory_(run_directory), communicator_(communicator), log_(communicator.rank()) {
  comm::run_on_all(communicator_, [&] {
    if (communicator_.rank() == 0) remove_drafts(run_directory_.ema_path(), log_);
  });
}

std::unique_ptr<FileWriter> ProfileSnapshots::begin(const Contents& checkpoint, const SaveOptions& options) {
  const Contents snapshot = snapshot_of(checkpoint);
  if (snapshot.sections.empty()) return nullptr;
  comm::run_on_all(communicator_, [&] {
    if (communicator_.rank() != 0) return;
    run_directory_.check_held();
    make_directories(run_directory_.ema_path());
  });
  return std::make_unique<FileWriter>(
      run_directory_.ema_path() + "/" + name_of_step(checkpoint.position.step), snapshot, communicator_,
      options);
}

void ProfileSnapshots::thin(std::int64_t newest_step) {
  std::vector<std::int64_t> steps = steps_in(run_directory_.ema_path());
  std::reverse(steps.begin(), steps.end());
  std::int64_t before = -1;
  for (const std::int64_t step : steps) {
    if (before < 0 || step >= newest_step || density * (step - before) >= before) {
      before = step;
      continue;
    }
    try {
      remove_file(run_directory_.ema_path() + "/" + name_of_step(step));
    } catch (const Error& error) {
      log_.warning("an old profile snapshot stays: {}", error.what());
    }
  }
}

void ProfileSnapshots::drop_after(std::int64_t step) {
  comm::run_on_all(communicator_, [&] {
    if (communicator_.rank() != 0) return;
    std::vector<std::int64_t> later = steps_in(run_directory_.ema_path());
    std::erase_if(later, [&](std::int64_t other) { return other <= step; });
    if (later.empty()) return;
    run_directory_.check_held();
    log_.info("{}: snapshots after step {} are removed: {}, up to step {}", run_directory_.ema_path(), step,
              later.size(), later.front());
    for (const std::int64_t other : later) remove_file(run_directory_.ema_path() + "/" + name_of_step(other));
  });
}

}  // namespace lockstep::checkpoint
