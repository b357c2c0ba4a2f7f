#include "checkpoint/profile_snapshots.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "checkpoint/saving.h"
#include "checkpoint/step_files.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::checkpoint {
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

ProfileSnapshots::ProfileSnapshots(RunDirectory& run_directory, comm::Communicator& communicator)
    : run_directory_(run_directory), communicator_(communicator), log_(communicator.rank()) {
  comm::together(communicator_, [&] {
    if (communicator_.rank() == 0) remove_drafts(run_directory_.ema_path(), log_);
  });
}

std::unique_ptr<Saving> ProfileSnapshots::begin(const Contents& checkpoint, const SaveOptions& options) {
  const Contents snapshot = snapshot_of(checkpoint);
  if (snapshot.sections.empty()) return nullptr;
  comm::together(communicator_, [&] {
    if (communicator_.rank() != 0) return;
    run_directory_.check_held();
    make_directories(run_directory_.ema_path());
  });
  return std::make_unique<Saving>(run_directory_.ema_path() + "/" + name_of_step(checkpoint.position.step),
                                  snapshot, communicator_, options);
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
  comm::together(communicator_, [&] {
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
